"""Rules for limits on sending requests: how high a limit is, how it is divided, and when it is reached."""
