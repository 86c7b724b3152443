"""Results of a batch while it runs.

The modules find the lines that have a final result, and send these results in input order or in the order in
which they were found in storage.
"""
