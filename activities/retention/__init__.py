"""Retention: delete expired data, and the data that crashed processes left behind, in short turns."""
