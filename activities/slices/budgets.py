"""Budgets of tokens a day, of tenants, organizations, users and API keys: asked before each line is sent.

What its own lines have used a process knows at once, what those of others have as of its last look. So what
is used beyond a budget is at most what was in flight when it ran out, and what other workers were answered
between two looks.
"""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from secrets import token_hex

from activities.slices.shares import Group, Shares
from batchwright.database.quotas_base import OwnQuotas, QuotasTable, Spent

_NOBODY = date.min
_DAY_SECONDS = 86_400


@dataclass
class _Sum:
    """Tokens of one day."""

    by_tenant: Counter[str] = field(default_factory=Counter[str])
    by_key: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    by_group: Counter[Group] = field(default_factory=Counter[Group])
    is_told: bool = True

    def add(self, tenant: str, key_id: str, tokens: int, shares: Shares) -> None:
        self.by_tenant[tenant] += tokens
        self.by_key[tenant, key_id] += tokens
        for group in shares.of(tenant, key_id):
            self.by_group[group] += tokens

    def group(self, shares: Shares) -> None:
        """Adds up anew what those have used who share a budget now."""
        self.by_group.clear()
        for (tenant, key_id), tokens in self.by_key.items():
            for group in shares.of(tenant, key_id):
                self.by_group[group] += tokens

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
        self._shares = Shares()
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
        for group in self._shares.of(tenant, key_id):
            limit = self._shares.limits[group]
            if self._spent(lambda of, group=group: of.by_group[group]) >= limit:
                return (
                    f"The budget of {limit} tokens a day of {group.whose} is used up; "
                    "it begins anew at 00:00 UTC."
                )
        return ""

    def spend(self, tenant: str, key_id: str, tokens: int) -> None:
        """A line of such a batch was answered."""
        if tokens:
            today = self._today()
            own = self._own.get(today)
            if own is None:
                own = self._own[today] = _Sum()
            own.add(tenant, key_id, tokens, self._shares)
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
        shares = Shares(await self._table.organizations(), await self._table.limited_users())
        others = _Sum()
        self.has_limits = bool(self._default or any(tenants.values()) or any(keys.values()) or shares)
        if self.has_limits:
            for spent in await self._table.spent_by_others(self._worker, today):
                others.add(*spent, shares)
        self._tenants, self._keys, self._shares = tenants, keys, shares
        self._others, self._others_on = others, today
        for own_sums in self._own.values():
            own_sums.group(shares)

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
