"""Batches: create, control, watch, rerun and delete them, and read their results while they run."""
