"""Measures in a simulation how exact forecasts are. `python -m bench.forecast` prints the table."""
