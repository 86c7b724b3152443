"""Objects that the HTTP API returns, by subject, and the events of webhooks."""
