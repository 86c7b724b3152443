"""Tenants with their API keys, sessions, quotas, usage and budgets."""
