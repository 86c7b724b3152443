"""The activity that delivers webhooks."""
