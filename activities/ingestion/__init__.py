"""Ingestion: copy the input to the local disk, check its lines, and plan the order in which they are sent."""
