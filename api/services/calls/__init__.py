"""Services for single calls: accept them, send them, and hold the connections of clients that wait."""
