"""Objects that the HTTP API returns, and the events of webhooks. There is one module for each topic."""
