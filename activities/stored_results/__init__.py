"""Stored results, read back: segments (stored objects with many results each), and an index in input order.

Finalization writes the output files from it. Ingestion reads the results of a batch that is resumed.
"""
