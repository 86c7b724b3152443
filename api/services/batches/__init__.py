"""Services for batches: create, control, follow, rerun and delete them."""
