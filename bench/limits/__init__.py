"""Simulation that compares concurrency limits. `python -m bench.limits` prints tables with the results."""
