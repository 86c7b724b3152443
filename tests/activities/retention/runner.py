"""Runs the retention activity repeatedly until all data of a kind is processed, as the workflow does."""

from collections.abc import Sequence
from datetime import datetime

from temporalio.testing import ActivityEnvironment

from batchwright.activities.retention.activity import Retention
from batchwright.contracts.temporal_payloads.retention import DeletionCount, RetentionKind, SweepRequest
from batchwright.database.database import Database
from batchwright.storage.base import Storage
from batchwright.telemetry.metrics import Metrics
from tests.fakes.settings import load


class RetentionRunner:
    """A runner that calls the retention activity repeatedly. Each call lasts at most `turn_seconds`.

    If `turn_seconds` is 0, each call handles one row.
    """

    def __init__(self, database: Database, storage: Storage, turn_seconds: float = 0) -> None:
        self.metrics = Metrics()
        self.turns = 0
        self._retention = Retention(database, storage, load(), self.metrics, turn_seconds)

    async def run(self, kind: RetentionKind, now: datetime, *, dry_run: bool = False) -> DeletionCount:
        """Delete all expired data of a kind, and return how much was deleted.

        Args:
            now: time for which expiry is checked.
            dry_run: True to only count the data, without deleting it.

        Raises:
            ApplicationError: the activity failed.
        """
        gone = DeletionCount(kind=kind)
        request = SweepRequest(kind=kind, now=now, so_far=gone, dry_run=dry_run)
        while True:
            result = await ActivityEnvironment().run(self._retention.sweep, request)
            self.turns += 1
            gone = _sum(gone, result.deleted)
            if result.position is None:
                return gone
            request = request.model_copy(update={"position": result.position, "so_far": gone})

    async def counts(self, kinds: Sequence[RetentionKind], now: datetime) -> list[int]:
        return [(await self.run(kind, now)).count for kind in kinds]


def _sum(one: DeletionCount, other: DeletionCount) -> DeletionCount:
    return DeletionCount(
        kind=one.kind,
        count=one.count + other.count,
        bytes=one.bytes + other.bytes,
        failures=one.failures + other.failures,
    )
