"""Find differences between rows, workflow runs, files and counts, and repair them if the repair is safe."""
