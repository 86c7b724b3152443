"""Retention for tests: turns of the activity until a kind is done, as the workflow asks for them."""

from collections.abc import Sequence
from datetime import datetime

from temporalio.testing import ActivityEnvironment

from activities.retention import Retention
from batchwright.contracts.retention import Gone, Kind, SweepRequest
from batchwright.database.base import DatabaseLike
from batchwright.settings import Settings
from batchwright.storage.base import Storage
from batchwright.telemetry.metrics import Metrics
from tests.fakes.settings import load


class Runs:
    """`turn_seconds` 0 makes a turn of every row."""

    def __init__(
        self,
        database: DatabaseLike,
        storage: Storage,
        settings: Settings | None = None,
        turn_seconds: float = 0,
    ) -> None:
        self.metrics = Metrics()
        self.turns = 0
        self._retention = Retention(database, storage, settings or load(), self.metrics, turn_seconds)

    async def run(self, kind: Kind, now: datetime, *, dry_run: bool = False) -> Gone:
        """Raises ApplicationError as the activity does."""
        gone = Gone(kind=kind)
        request = SweepRequest(kind=kind, now=now, so_far=gone, dry_run=dry_run)
        while True:
            result = await ActivityEnvironment().run(self._retention.sweep, request)
            self.turns += 1
            gone = _sum(gone, result.gone)
            if result.place is None:
                return gone
            request = request.model_copy(update={"place": result.place, "so_far": gone})

    async def counts(self, kinds: Sequence[Kind], now: datetime) -> list[int]:
        return [(await self.run(kind, now)).count for kind in kinds]


def _sum(one: Gone, other: Gone) -> Gone:
    return Gone(
        kind=one.kind,
        count=one.count + other.count,
        bytes=one.bytes + other.bytes,
        failures=one.failures + other.failures,
    )
