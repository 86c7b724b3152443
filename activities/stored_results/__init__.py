"""Read stored results back: segments (stored objects with many results each), and an index in input order.

Finalization writes the output files from the index. Ingestion uses it for the results of a batch that is
resumed.
"""
