"""Short constructors for the three kinds of budget groups."""

from batchwright.contracts.terms import GroupKind
from batchwright.rules.tenants.quotas import BudgetGroup


def organization(name: str) -> BudgetGroup:
    return BudgetGroup(GroupKind.ORGANIZATION, "", name)


def team(tenant: str, name: str) -> BudgetGroup:
    return BudgetGroup(GroupKind.TEAM, tenant, name)


def user(tenant: str, name: str) -> BudgetGroup:
    return BudgetGroup(GroupKind.USER, tenant, name)
