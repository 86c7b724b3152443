"""Find differences between the rows, workflow runs, files and counts of batches, and repair some of them."""
