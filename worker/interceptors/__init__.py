"""Interceptors that run around every activity of a worker."""
