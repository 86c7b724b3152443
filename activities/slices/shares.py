"""Who shares a budget of tokens: the tenants of an organization, the API keys of a user."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from batchwright.database.tenant_rows import OrganizationRow, UserRow


class Group(NamedTuple):
    """`tenant` is a user's, empty: an organization."""

    tenant: str
    name: str

    @property
    def whose(self) -> str:
        return f"the user {self.name}" if self.tenant else f"your organization {self.name}"


class Shares:
    """The groups that have a budget, and who is in them."""

    def __init__(self, organizations: Iterable[OrganizationRow] = (), users: Iterable[UserRow] = ()) -> None:
        self.limits: dict[Group, int] = {}
        self._of_tenants: dict[str, Group] = {}
        self._of_keys: dict[tuple[str, str], Group] = {}
        for row in organizations:
            if row.tokens_per_day:
                group = Group("", row.name)
                self.limits[group] = row.tokens_per_day
                self._of_tenants.update(dict.fromkeys(row.tenants, group))
        for row in users:
            if row.tokens_per_day:
                group = Group(row.tenant, row.name)
                self.limits[group] = row.tokens_per_day
                self._of_keys.update(((row.tenant, key), group) for key in row.keys)

    def __bool__(self) -> bool:
        """Whether anybody is in one."""
        return bool(self._of_tenants or self._of_keys)

    def of(self, tenant: str, key_id: str) -> Iterator[Group]:
        """Those that what such a batch's lines use counts for."""
        if (user := self._of_keys.get((tenant, key_id))) is not None:
            yield user
        if (organization := self._of_tenants.get(tenant)) is not None:
            yield organization
