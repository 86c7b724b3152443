"""Access to the endpoints of webhooks: URLs that tenants have chosen, and that are not trusted."""
