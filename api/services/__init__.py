"""What routes do, by subject. The files beside the folders are shared by several subjects."""
