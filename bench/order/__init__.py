"""Simulation that compares rules for the order of a tenant's batches.

`python -m bench.order` prints the tables.
"""
