"""One turn of retention: what it works with, how long, and what it has deleted."""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from batchwright.contracts.retention import Gone, Kind, Place
from batchwright.database.base import DatabaseLike
from batchwright.rules.retention import Horizons
from batchwright.storage.base import Storage, StorageError, StorageUnavailable
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

# Short, for a turn has a slot that ingestions and finalizations want too.
TURN_SECONDS = 10.0
PAGE = 100
T = TypeVar("T")


@dataclass
class Turn:
    """`is_over` says when to stop, at the next place from which another turn can go on."""

    kind: Kind
    database: DatabaseLike
    storage: Storage
    horizons: Horizons
    now: datetime
    metrics: Metrics
    dry_run: bool = False
    seconds: float = TURN_SECONDS
    count: int = 0
    bytes: int = 0
    failures: int = 0
    _began: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self._began >= self.seconds

    @property
    def gone(self) -> Gone:
        return Gone(kind=self.kind, count=self.count, bytes=self.bytes, failures=self.failures)

    def deleted(self, count: int = 1, size: int = 0) -> None:
        """Also of a dry run, whose numbers are no metrics."""
        self.count += count
        self.bytes += size
        if not self.dry_run:
            self.metrics.retention_deleted.labels(self.kind).inc(count)
            self.metrics.retention_deleted_bytes.labels(self.kind).inc(size)

    def failed(self, about: str, why: str) -> None:
        """One thing cannot be deleted; the others can."""
        self.failures += 1
        self.metrics.retention_failures.labels(self.kind).inc()
        logger.error("retention", extra={"kind": self.kind.value, "about": about, "error": why})

    @asynccontextmanager
    async def alone(self, about: str) -> AsyncGenerator[None]:
        """What is wrong with one object is no reason to stop; a storage that is away is."""
        try:
            yield
        except StorageUnavailable:
            raise
        except StorageError as error:
            self.failed(about, str(error))

    async def delete_below(self, prefix: str) -> None:
        """Every object there is."""
        async for found in self.storage.list(prefix):
            await self.delete_object(found.key, found.size)

    async def delete_object(self, key: str, size: int) -> None:
        if not self.dry_run:
            await self.storage.delete(key)
        self.deleted(1, size)


Fetch = Callable[[Place], Awaitable[Sequence[T]]]


async def in_pages(
    turn: Turn,
    place: Place,
    fetch: Fetch[T],
    each: Callable[[T], Awaitable[None]],
    place_of: Callable[[T], Place],
) -> Place | None:
    """Row after row until there is none, or the turn is over: then where to go on.

    It goes by place and not by what is left, so that a row that cannot be deleted holds up no other.
    """
    while rows := await fetch(place):
        for row in rows:
            await each(row)
            place = place_of(row)
            if turn.is_over:
                return place
    return None
