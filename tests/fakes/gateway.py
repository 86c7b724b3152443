"""A fake of the API's connection to Temporal. It stores the calls of its methods in memory."""

from collections.abc import Callable

from batchwright.api.temporal_gateway import RunMissing, TemporalGateway
from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchState
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.temporal.batch_schedules import BatchSchedules
from batchwright.temporal.pending_activities import PendingActivity
from tests.fakes.batch_schedules import MemoryBatchSchedules


class MemoryGateway(TemporalGateway):
    """A fake gateway without Temporal.

    Attributes:
        orders: started batches by id.
        signals: batch id and name of each signal, in order.
        lookups: batch ids for which `running_order` was called.
        states: results of `state` by batch id. A test sets them.
        ingestions: results of `ingested` by batch id. A test sets them.
        activities: results of `pending` by workflow id. A test sets them. `children` returns its ids that
            begin with the id of the batch and a slash.
        open: ids of workflows that have not ended.
        failing: if a test sets an exception, every method except `state` raises it.
    """

    def __init__(self, schedules: BatchSchedules | None = None) -> None:
        self.orders: dict[str, BatchOrder] = {}
        self.signals: list[tuple[str, str]] = []
        self.states: dict[str, BatchState] = {}
        self.ingestions: dict[str, IngestResult] = {}
        self.activities: dict[str, list[PendingActivity]] = {}
        self.lookups: list[str] = []
        self.open: set[str] = set()  # ids of workflows that have not ended
        self.on_ingested: Callable[[], None] = lambda: None  # called before `ingested` returns
        self.failing: Exception | None = None
        self.schedules: BatchSchedules = schedules or MemoryBatchSchedules()

    async def start(self, order: BatchOrder) -> bool:
        self._enter()
        return self.orders.setdefault(order.batch_id, order) is order

    async def cancel(self, batch_id: str) -> None:
        self._signal(batch_id, "cancel")

    async def pause(self, batch_id: str, change: int) -> None:
        self._signal(batch_id, "pause")

    async def resume(self, batch_id: str, change: int) -> None:
        self._signal(batch_id, "resume")

    async def abandon(self, batch_id: str) -> None:
        self._signal(batch_id, "abandon")

    async def state(self, batch_id: str) -> BatchState | None:
        return self.states.get(batch_id)

    async def running_order(self, batch_id: str) -> BatchOrder | None:
        self.lookups.append(batch_id)
        self._enter()
        return None if batch_id not in self.open else self.orders.get(batch_id)

    async def ingested(self, batch_id: str) -> IngestResult | None:
        self._enter()
        self.on_ingested()
        return self.ingestions.get(batch_id)

    async def pending(self, workflow_id: str) -> list[PendingActivity]:
        self._enter()
        return self.activities.get(workflow_id, [])

    async def children(self, workflow_id: str) -> list[str]:
        self._enter()
        return sorted(id for id in self.activities if id.startswith(f"{workflow_id}/"))

    async def has_ended(self, workflow_id: str) -> bool:
        self._enter()
        return workflow_id not in self.open

    async def check(self) -> None:
        self._enter()

    def _signal(self, batch_id: str, signal: str) -> None:
        self._enter()
        if batch_id not in self.orders:
            raise RunMissing(batch_id)
        self.signals.append((batch_id, signal))

    def _enter(self) -> None:
        if self.failing is not None:
            raise self.failing
