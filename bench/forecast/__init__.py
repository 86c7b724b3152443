"""Calibration of forecasts in a simulation. `python -m bench.forecast` prints the table."""
