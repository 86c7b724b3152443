"""Budgets of tokens a day, of tenants, of organizations and of API keys: asked before each line is sent.

What its own lines have used a process knows at once, what those of others have as of its last look. So what
is used beyond a budget is at most what was in flight when it ran out, and what other workers were answered
between two looks.
"""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from secrets import token_hex

from batchwright.database.quotas_base import OwnQuotas, QuotasTable, Spent

_NOBODY = date.min
_DAY_SECONDS = 86_400


@dataclass
class _Sum:
    """Tokens of one day."""

    by_tenant: Counter[str] = field(default_factory=Counter[str])
    by_key: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    by_organization: Counter[str] = field(default_factory=Counter[str])
    is_told: bool = True

    def add(self, tenant: str, key_id: str, tokens: int) -> None:
        self.by_tenant[tenant] += tokens
        self.by_key[tenant, key_id] += tokens

    def group(self, organizations: Mapping[str, str]) -> None:
        """Adds up anew what organizations have used, of the tenants that are in them now."""
        self.by_organization.clear()
        for tenant, organization in organizations.items():
            self.by_organization[organization] += self.by_tenant[tenant]

    def rows(self) -> list[Spent]:
        return [Spent(tenant, key_id, tokens) for (tenant, key_id), tokens in self.by_key.items()]


class TokenBudgets:
    """Of one process; `default` is the budget of tenants that have none of their own, 0: no limit."""

    def __init__(
        self, table: QuotasTable, default: int, *, worker: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        self._table, self._default, self._clock = table, default, clock
        self.has_limits = default > 0  # of anybody
        self._worker = worker or f"{socket.gethostname()}:{os.getpid()}:{token_hex(4)}"
        self._days, self._date = -1, date.min  # of now, since 1970
        self._own: dict[date, _Sum] = {}
        self._others, self._others_on = _Sum(), _NOBODY
        self._tenants: Mapping[str, int] = {}
        self._keys: Mapping[str, int] = {}
        self._organizations: Mapping[str, int] = {}
        self._organization_of: Mapping[str, str] = {}  # by tenant, of those that have a budget
        self._cleared_on = _NOBODY

    def exhausted(self, tenant: str, key_id: str) -> str:
        """Why a line of a batch that was created with that key is not to be sent; empty: it may be."""
        limit = self._tenants.get(tenant, self._default)
        if limit and self._spent(lambda of: of.by_tenant[tenant]) >= limit:
            return f"Your budget of {limit} tokens a day is used up; it begins anew at 00:00 UTC."
        limit = self._keys.get(key_id, 0) if key_id else 0
        if limit and self._spent(lambda of: of.by_key[tenant, key_id]) >= limit:
            return (
                f"The budget of {limit} tokens a day of the API key {key_id} is used up; "
                "it begins anew at 00:00 UTC."
            )
        return self._exhausted_together(tenant)

    def _exhausted_together(self, tenant: str) -> str:
        organization = self._organization_of.get(tenant)
        if organization is None:
            return ""
        limit = self._organizations[organization]
        if self._spent(lambda of: of.by_organization[organization]) < limit:
            return ""
        return (
            f"The budget of {limit} tokens a day of your organization {organization} is used up; "
            "it begins anew at 00:00 UTC."
        )

    def spend(self, tenant: str, key_id: str, tokens: int) -> None:
        """A line of such a batch was answered."""
        if tokens:
            today = self._today()
            own = self._own.get(today)
            if own is None:
                own = self._own[today] = _Sum()
            own.add(tenant, key_id, tokens)
            if organization := self._organization_of.get(tenant):
                own.by_organization[organization] += tokens
            own.is_told = False

    async def refresh(self, own: Mapping[str, OwnQuotas]) -> None:
        """Tells what was used here, reads what was used elsewhere. Raises DatabaseUnavailable."""
        today = self._today()
        await self.tell()
        if self._cleared_on != today:
            await self._table.forget_spent(today)
            self._cleared_on = today
        limits = {name: quotas.tokens_per_day for name, quotas in own.items()}
        tenants = {name: limit for name, limit in limits.items() if limit is not None}
        keys = await self._table.key_budgets()
        limited = {row.name: row for row in await self._table.organizations() if row.tokens_per_day}
        organizations = {name: row.tokens_per_day or 0 for name, row in limited.items()}
        organization_of = {tenant: name for name, row in limited.items() for tenant in row.tenants}
        others = _Sum()
        self.has_limits = bool(
            self._default or any(tenants.values()) or any(keys.values()) or organization_of
        )
        if self.has_limits:
            _add_all(others, await self._table.spent_by_others(self._worker, today))
        self._tenants, self._keys, self._others, self._others_on = tenants, keys, others, today
        self._organizations, self._organization_of = organizations, organization_of
        for sums in (others, *self._own.values()):
            sums.group(organization_of)

    async def tell(self) -> None:
        """Raises DatabaseUnavailable; then the next call tells it."""
        today = self._today()
        for day, own in list(self._own.items()):
            if not own.is_told:
                own.is_told = True
                try:
                    await self._table.tell_spent(self._worker, day, own.rows())
                except BaseException:
                    own.is_told = False
                    raise
            if day < today and own.is_told:
                self._own.pop(day, None)

    def _spent(self, of: Callable[[_Sum], int]) -> int:
        today, own = self._today(), self._own.get(self._today())
        others = of(self._others) if self._others_on == today else 0
        return others + (of(own) if own is not None else 0)

    def _today(self) -> date:
        """Asked with each answer: a date is made once a day."""
        days = int(self._clock() // _DAY_SECONDS)
        if days != self._days:
            self._days, self._date = days, datetime.fromtimestamp(days * _DAY_SECONDS, UTC).date()
        return self._date


def _add_all(sums: _Sum, spent: Iterable[Spent]) -> None:
    for one in spent:
        sums.add(one.tenant, one.key_id, one.tokens)
