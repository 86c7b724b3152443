"""Read stored results from segments (objects with many results each), and index them in input order.

Finalization writes the output files from the index. Ingestion uses it for the results of a batch that is
resumed.
"""
