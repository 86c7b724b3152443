"""What a tenant may use, and how much, as of at most five seconds ago: asked before each line is sent."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

from activities.slices.budgets import TokenBudgets
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.quotas_base import OwnQuotas, QuotasTable

logger = logging.getLogger(__name__)
MAX_AGE_SECONDS = 5.0
_EVERY_SECONDS = 1.0
_AFTER_ITS_WINDOW = timedelta(days=1)


class Permissions(Protocol):
    # As long as it stays the same, what may be sent now may be sent. None: each line is asked for.
    edition: int | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether it is known what holds now; nothing is sent while it is not."""
        ...

    def may_use(self, tenant: str, model: str) -> bool: ...

    def is_withdrawn(self, key_id: str) -> bool:
        """Whether the API key was revoked or has expired; empty: there was none."""
        ...

    def exhausted(self, tenant: str, key_id: str) -> str:
        """Why a line of a batch created with that API key is not to be sent now; empty: it may be."""
        ...

    def spend(self, tenant: str, key_id: str, tokens: int) -> None:
        """A line of such a batch was answered."""
        ...


class NoPermissions(Permissions):
    """Every tenant may use every model, as much as it likes."""

    @property
    def is_fresh(self) -> bool:
        return True

    def may_use(self, tenant: str, model: str) -> bool:
        return True

    def is_withdrawn(self, key_id: str) -> bool:
        return False

    def exhausted(self, tenant: str, key_id: str) -> str:
        return ""

    def spend(self, tenant: str, key_id: str, tokens: int) -> None:
        pass


class KnownPermissions(Permissions):
    """What the table says, read again and again; only tenants with something of their own have a row."""

    def __init__(
        self,
        table: QuotasTable,
        budgets: TokenBudgets,
        longest_window: timedelta,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """No batch that runs was created with a key that has been away for longer than `longest_window`."""
        self._table, self._budgets, self._clock = table, budgets, clock
        self._oldest = longest_window + _AFTER_ITS_WINDOW
        self._own: Mapping[str, OwnQuotas] = {}
        self._withdrawn: frozenset[str] = frozenset()
        self._read_at = float("-inf")
        self.edition = None if budgets.has_limits else 0
        self._refreshed = 0
        self._failing = False

    @property
    def is_fresh(self) -> bool:
        return self._clock() - self._read_at <= MAX_AGE_SECONDS

    def may_use(self, tenant: str, model: str) -> bool:
        own = self._own.get(tenant)
        return own is None or own.may_use(model)

    def is_withdrawn(self, key_id: str) -> bool:
        return key_id in self._withdrawn

    def exhausted(self, tenant: str, key_id: str) -> str:
        return self._budgets.exhausted(tenant, key_id)

    def spend(self, tenant: str, key_id: str, tokens: int) -> None:
        self._budgets.spend(tenant, key_id, tokens)

    async def leave(self) -> None:
        """The process goes: others should know what it has used."""
        try:
            await self._budgets.tell()
        except DatabaseUnavailable as error:
            logger.warning("what lines have used was not told to the others", extra={"error": str(error)})

    async def refresh(self) -> None:
        """Raises DatabaseUnavailable."""
        asked_at = self._clock()
        own = {row.tenant: row.own for row in await self._table.all()}
        withdrawn = await self._table.withdrawn_keys(datetime.now(UTC) - self._oldest)
        await self._budgets.refresh(own)
        self._own, self._withdrawn = own, withdrawn
        self._read_at = asked_at
        self._refreshed += 1
        self.edition = None if self._budgets.has_limits else self._refreshed

    async def run(self) -> None:
        """Refreshes for ever; a database that is away is logged once and asked again."""
        while True:
            try:
                await self.refresh()
                self._failing = False
            except DatabaseUnavailable as error:
                if not self._failing:
                    message = "permissions and budgets cannot be read: nothing is sent until they can"
                    logger.warning(message, extra={"error": str(error)})
                self._failing = True
            await asyncio.sleep(_EVERY_SECONDS)
