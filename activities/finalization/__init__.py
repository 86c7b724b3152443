"""Finalization: read the stored results, settle the lines that have no result yet, write the files."""
