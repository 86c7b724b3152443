"""Simulation that compares rules for the order in which a tenant's batches send lines.

`python -m bench.order` prints tables with the results.
"""
