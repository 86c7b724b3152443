"""Batches of tenants: their rows, lists, progress, dead letters and reruns."""
