"""Simulation that measures how exact Batchwright's forecasts of the end of a batch are.

`python -m bench.forecast` prints tables with the results.
"""
