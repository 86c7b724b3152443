"""What a user would write or install instead; each runs as a process of its own."""
