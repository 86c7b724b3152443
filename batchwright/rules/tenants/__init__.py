"""Rules for tenants: check API keys and quotas, and limit attempts, such as requests with wrong keys."""
