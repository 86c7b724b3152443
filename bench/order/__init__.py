"""Comparison of rules that order the batches of a tenant. `python -m bench.order` prints the tables."""
