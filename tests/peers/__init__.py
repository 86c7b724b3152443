"""Servers that nobody here wrote, as backends of the whole stack."""
