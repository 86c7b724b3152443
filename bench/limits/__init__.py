"""Comparison of concurrency limits in a simulation. `python -m bench.limits` prints the table."""
