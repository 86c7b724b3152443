"""Stored objects: their keys, locations that clients name in buckets, and when an object may be deleted."""
