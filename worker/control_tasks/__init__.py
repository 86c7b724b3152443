"""Tasks that control workers repeat for the whole fleet: metrics, forecasts, waiting reasons, webhooks."""
