"""Looks at the whole fleet every few seconds, for the metrics of a control worker."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from temporalio.service import RPCError

from batchwright.database.errors import DatabaseUnavailable
from batchwright.telemetry.metrics import Metrics
from worker.broken_runs import BrokenRuns
from worker.budgets import BudgetWatch
from worker.outlook import Outlook
from worker.queues import QueueWatch
from worker.retained import Retained

logger = logging.getLogger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


class Observer:
    """What cannot be looked at keeps its last values; `observed_timestamp_seconds` tells how old they are."""

    def __init__(
        self,
        outlook: Outlook,
        queues: QueueWatch,
        runs: BrokenRuns,
        metrics: Metrics,
        retained: Retained,
        budgets: BudgetWatch,
        *,
        every_seconds: float,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._outlook, self._queues, self._runs, self._metrics = outlook, queues, runs, metrics
        self._retained, self._budgets = retained, budgets
        self._every, self._now = every_seconds, now
        self._failing: set[str] = set()

    async def run(self) -> None:
        """Looks for ever."""
        while True:
            await self.look()
            await asyncio.sleep(self._every)

    async def look(self) -> None:
        """Once; never raises for a database or a server that is away."""
        await self._try("batches", self._outlook.look(self._now()))
        await self._try("runs", self._runs.look())
        await self._try("retention", self._retained.look())
        await self._try("budgets", self._budgets.look(self._now()))
        await self._try("queues", self._queues.look(self._outlook.models))

    async def _try(self, source: str, looking: Awaitable[None]) -> None:
        try:
            await looking
        except (DatabaseUnavailable, RPCError) as error:
            if source not in self._failing:
                logger.warning("metrics of the fleet are old", extra={"source": source, "error": str(error)})
            self._failing.add(source)
            return
        self._failing.discard(source)
        self._metrics.observed_at.labels(source).set(self._now().timestamp())
