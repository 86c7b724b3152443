"""Measures in a simulation how exact the forecasts of batch ends are. `python -m bench.forecast` prints
tables.
"""
