"""Forecasts: when live batches and new batches will be done, and the speeds from which this is computed."""
