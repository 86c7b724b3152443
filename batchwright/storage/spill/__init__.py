"""Rows, columns and bytes that grow with a batch: in memory while they are small, else on the local disk."""
