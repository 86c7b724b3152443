"""Setup and checks of a Temporal namespace, and the schedules of maintenance in it."""
