"""Comparison of rules that share permits between tenants. `python -m bench.shares` prints the table."""
