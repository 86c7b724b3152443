"""Simulation that compares concurrency limits. `python -m bench.limits` prints the table."""
