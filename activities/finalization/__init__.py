"""Finalization: read the stored results, settle lines without a result and duplicates, write the files."""
