"""State of one slice: its lease, its queue of lines, its stored results, and the lines that crash workers."""
