"""Phase: create the batches of schedules."""
