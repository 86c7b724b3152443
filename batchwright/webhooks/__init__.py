"""Checks the URLs that tenants choose for webhooks, and sends webhooks to them without trusting them."""
