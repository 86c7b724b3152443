"""Retention: delete expired data and what crashed processes left behind, in short turns."""
