"""The audit: rows, runs, files and counts compared."""
