"""Retention, kind by kind; `activities.retention` runs them in turns."""
