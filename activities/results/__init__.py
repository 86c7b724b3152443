"""Results of a batch: segments (stored objects with many results each), their index, and the output files."""
