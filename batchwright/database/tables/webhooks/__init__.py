"""Endpoints of webhooks, and deliveries to them."""
