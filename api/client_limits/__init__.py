"""Limits that protect an API process from slow, large or impatient clients."""
