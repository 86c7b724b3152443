"""Simulation that compares rules for sharing permits (rights to have a request in flight) between tenants.

`python -m bench.shares` prints tables with the results.
"""
