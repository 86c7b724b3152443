"""The form of settings that are names."""

from batchwright.rules.ids import is_tenant


def tenant_or_none(name: str) -> str:
    """Raises ValueError unless it is empty or can be a tenant's."""
    if name and not is_tenant(name):
        raise ValueError("a tenant has 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit")
    return name
