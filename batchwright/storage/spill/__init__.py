"""Data that may become too large for memory. Small data is in memory, large data on the local disk."""
