"""Tasks that workers of the role `control` repeat: fleet metrics, forecasts, waiting reasons, webhooks."""
