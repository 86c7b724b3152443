"""Limits of sending: requests in flight by model and over all models, rates, tenants' shares, and memory."""
