"""Simulation that compares rules for sharing permits between tenants.

`python -m bench.shares` prints the tables.
"""
