"""Permissions that forbid nothing."""

from batchwright.activities.services.send_authorization import Permissions


class UnrestrictedPermissions(Permissions):
    """Permissions without limits: every tenant may use every model, and there are no budgets."""

    def may_use(self, tenant: str, model: str) -> bool:
        return True

    def is_withdrawn(self, key_id: str) -> bool:
        return False

    def budget_exceeded(self, tenant: str, key_id: str, currency: str) -> None:
        return None

    def record_usage(self, tenant: str, key_id: str, tokens: int, cost: int) -> None:
        pass
