"""Tenants: their API keys, their quotas, and the limit of failed requests such as those with wrong keys."""
