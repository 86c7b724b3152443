"""One turn (activity) of retention: its inputs, its time limit, and the counts of deleted data."""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from batchwright.contracts.temporal_payloads.retention import DeletionCount, RetentionKind, SweepPosition
from batchwright.database.database import Database
from batchwright.rules.stored_objects.retention import RetentionCutoffs
from batchwright.storage.base import Storage, StorageError, StorageUnavailable
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

# Short, because a turn occupies a slot that ingestions and finalizations need as well.
TURN_SECONDS = 10.0
PAGE = 100
T = TypeVar("T")


@dataclass
class RetentionTurn:
    """One turn (activity) of retention: it deletes old data of one kind, for a limited time.

    The next turn continues at the position at which this turn stops. Only certain points in the data are
    positions. When `is_over` is True, the turn stops at the next position.

    Attributes:
        cutoffs: for each kind of data, the time before which data is old enough to be deleted.
        dry_run: True to delete nothing and only count.
        seconds: maximum duration of the turn.
    """

    kind: RetentionKind
    database: Database
    storage: Storage
    cutoffs: RetentionCutoffs
    now: datetime
    metrics: Metrics
    dry_run: bool
    seconds: float
    count: int = 0
    bytes: int = 0
    failures: int = 0
    _began: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self._began >= self.seconds

    @property
    def total(self) -> DeletionCount:
        return DeletionCount(kind=self.kind, count=self.count, bytes=self.bytes, failures=self.failures)

    def count_deleted(self, count: int = 1, size: int = 0) -> None:
        """Count deleted items and their bytes. In a dry run, the metrics stay unchanged."""
        self.count += count
        self.bytes += size
        if not self.dry_run:
            self.metrics.retention_deleted.labels(self.kind).inc(count)
            self.metrics.retention_deleted_bytes.labels(self.kind).inc(size)

    def count_failure(self, subject: str, error: str) -> None:
        """Count and log an item that could not be deleted. The activity continues with the other items.

        Args:
            subject: id or storage key of the item.
            error: the reason.
        """
        self.failures += 1
        self.metrics.retention_failures.labels(self.kind).inc()
        data = {"kind": self.kind.value, "about": subject, "error": error}
        logger.error("retention failure", extra=data)

    @asynccontextmanager
    async def isolated(self, subject: str) -> AsyncGenerator[None]:
        """Context manager that handles the storage errors of one item.

        StorageUnavailable is raised, because this error affects all items. Any other storage error is counted
        as a failure of this item and not raised, so the activity continues with the next item.

        Args:
            subject: id or storage key of the item.
        """
        try:
            yield
        except StorageUnavailable:
            raise
        except StorageError as error:
            self.count_failure(subject, str(error))

    async def delete_prefix(self, prefix: str) -> None:
        """Delete every object whose storage key begins with `prefix`. A dry run only counts them."""
        async for found in self.storage.list(prefix):
            await self.delete_object(found.key, found.size)

    async def delete_object(self, key: str, size: int) -> None:
        if not self.dry_run:
            await self.storage.delete(key)
        self.count_deleted(1, size)


Fetch = Callable[[SweepPosition], Awaitable[Sequence[T]]]


async def sweep_pages(
    turn: RetentionTurn,
    position: SweepPosition,
    fetch: Fetch[T],
    each: Callable[[T], Awaitable[None]],
    position_of: Callable[[T], SweepPosition],
) -> SweepPosition | None:
    """Process database rows until the last row or the end of the turn. Some rows (a page) are read at a time.

    Return the position at which the next turn (activity) continues; None after the last row.

    Args:
        fetch: returns the next rows after a position; an empty result means that none are left.
        each: processes one row.
        position_of: returns the position of a row.
    """
    while rows := await fetch(position):
        for row in rows:
            await each(row)
            position = position_of(row)
            if turn.is_over:
                return position
    return None
