"""Find differences between rows, workflow runs, files and counts, and repair those that are safe."""
