"""Single calls: lines of the rolling batches that run them, and the stored results of calls."""
