"""Single calls: accept them, and hold the connections of clients that wait for the answer."""
