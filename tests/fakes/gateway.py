"""A Temporal gateway that remembers what it was asked."""

from api.temporal_gateway import RunMissing, TemporalGateway
from batchwright.contracts.batch import BatchOrder, BatchState


class MemoryGateway(TemporalGateway):
    """`failing = TemporalUnavailable(...)` makes every call fail; `states` holds the answers to `state`."""

    def __init__(self) -> None:
        self.orders: dict[str, BatchOrder] = {}
        self.signals: list[tuple[str, str]] = []
        self.states: dict[str, BatchState] = {}
        self.failing: Exception | None = None

    async def start(self, order: BatchOrder) -> None:
        self._enter()
        self.orders.setdefault(order.batch_id, order)

    async def cancel(self, batch_id: str) -> None:
        self._signal(batch_id, "cancel")

    async def pause(self, batch_id: str) -> None:
        self._signal(batch_id, "pause")

    async def resume(self, batch_id: str) -> None:
        self._signal(batch_id, "resume")

    async def state(self, batch_id: str) -> BatchState | None:
        return self.states.get(batch_id)

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
