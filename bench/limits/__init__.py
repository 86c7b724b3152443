"""In-flight limits at an engine in trouble, on a virtual clock: `python -m bench.limits` prints the table."""
