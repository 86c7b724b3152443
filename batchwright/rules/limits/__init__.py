"""Limits on the sending of requests: how high a limit is, how it is divided, and when it is reached."""
