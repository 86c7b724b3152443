"""Tables about models: models of each backend, registry changes, rate limits and holds (operators' stops)."""
