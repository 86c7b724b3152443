"""Which models a tenant may use, as of at most five seconds ago: asked before each line is sent."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.quotas_base import OwnQuotas, QuotasTable

logger = logging.getLogger(__name__)
MAX_AGE_SECONDS = 5.0
_EVERY_SECONDS = 1.0


class Permissions(Protocol):
    @property
    def is_fresh(self) -> bool:
        """Whether it is known what holds now; nothing is sent while it is not."""
        ...

    def may_use(self, tenant: str, model: str) -> bool: ...


class NoPermissions(Permissions):
    """Every tenant may use every model."""

    @property
    def is_fresh(self) -> bool:
        return True

    def may_use(self, tenant: str, model: str) -> bool:
        return True


class KnownPermissions(Permissions):
    """What the table says, read again and again; only tenants with something of their own have a row."""

    def __init__(self, table: QuotasTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._table, self._clock = table, clock
        self._own: Mapping[str, OwnQuotas] = {}
        self._read_at = float("-inf")
        self._failing = False

    @property
    def is_fresh(self) -> bool:
        return self._clock() - self._read_at <= MAX_AGE_SECONDS

    def may_use(self, tenant: str, model: str) -> bool:
        own = self._own.get(tenant)
        return own is None or own.may_use(model)

    async def refresh(self) -> None:
        """Raises DatabaseUnavailable."""
        asked_at = self._clock()
        self._own = {row.tenant: row.own for row in await self._table.all()}
        self._read_at = asked_at

    async def run(self) -> None:
        """Refreshes for ever; a database that is away is logged once and asked again."""
        while True:
            try:
                await self.refresh()
                self._failing = False
            except DatabaseUnavailable as error:
                if not self._failing:
                    message = "permissions on models cannot be read: nothing is sent until they can"
                    logger.warning(message, extra={"error": str(error)})
                self._failing = True
            await asyncio.sleep(_EVERY_SECONDS)
