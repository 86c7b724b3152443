"""Rules for stored objects: make their keys, parse the URLs that clients give, and decide what to delete."""
