"""The activities that create the batches of schedules."""
