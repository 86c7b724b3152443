"""Execution of slices: send their lines to backends and store the results (`docs/explanation/engine.md`)."""
