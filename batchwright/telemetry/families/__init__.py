"""The families of metrics, a file a subject; `telemetry.metrics` has them all."""
