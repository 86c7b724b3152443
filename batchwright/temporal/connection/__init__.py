"""Connection of a Temporal client: addresses, credentials, and their replacement while it is used."""
