"""Batches of tenants: their rows, lists, progress, dead letters (failed lines) and reruns."""
