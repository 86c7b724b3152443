"""Data over all tenants: for operators, for the fleet of workers, and for scheduled maintenance."""
