"""Services behind the routes, by subject. The files beside the folders serve several subjects."""
