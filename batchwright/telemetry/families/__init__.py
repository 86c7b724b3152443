"""Metrics, one file for each subject. `telemetry.metrics` combines them."""
