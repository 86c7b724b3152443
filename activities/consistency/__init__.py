"""Compare the database rows, workflow runs, files and line counts of batches. Repair some differences."""
