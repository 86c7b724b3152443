"""Services for batches: create, control, follow, rerun and delete them, and read results while they run."""
