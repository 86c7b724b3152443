"""Rules for calls (single requests of clients): make batch lines that run them, and read their results."""
