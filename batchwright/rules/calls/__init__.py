"""Single requests of clients (calls): the lines of batches that run them, and their stored results."""
