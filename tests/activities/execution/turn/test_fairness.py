"""A tenant that starts while another tenant keeps a worker busy gets its share of every scarce resource."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from batchwright.contracts.temporal_payloads.execution import SliceResult
from tests.activities.execution.fixture import (
    MODEL,
    ExecutionFixture,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)

pytestmark = pytest.mark.usefixtures("skipped_waits")
BUSY_LINES, NEW_LINES, SLOTS = 3_000, 12, 2
FIRST_NEW = 1_000_000  # contents from here on are the newcomer's


class Worker:
    """A worker on which slices of one busy tenant use all slots. When a slice is interrupted, it is started
    again.
    """

    def __init__(self, *, answer_seconds: float = 0.05, **settings: object) -> None:
        self.execution, self._seconds = ExecutionFixture(ok, **settings), answer_seconds
        self.execution.answer = self._answer
        self.is_unavailable = False

    def sent_since(self, start: int) -> int:
        """Return how many requests of the busy tenant were sent after the first `start` requests."""
        return sum(int(content) < FIRST_NEW for content in self.execution.sent[start:])

    async def newcomer(self) -> tuple[SliceResult, int]:
        """Run a slice of a new tenant until it is finished.

        Return its result, and the number of requests of the busy tenant that were sent meanwhile.
        """
        start = len(self.execution.sent)
        lines = [line_of(FIRST_NEW + n) for n in range(NEW_LINES)]
        await plan_slice(self.execution.storage, lines, "new")
        result = await self._until_finished("new", "f")
        return result, self.sent_since(start)

    @asynccontextmanager
    async def busy(self) -> AsyncGenerator[None]:
        slices: list[asyncio.Task[SliceResult]] = []
        for slot in range(SLOTS):
            first = slot * BUSY_LINES
            await plan_slice(
                self.execution.storage, [line_of(first + n) for n in range(BUSY_LINES)], f"busy{slot}"
            )
            slices.append(asyncio.create_task(self._until_finished(f"busy{slot}", str(slot))))
        try:
            await eventually(lambda: len(self.execution.sent) > 50)
            yield
            assert not any(one.done() for one in slices)
        finally:
            for one in slices:
                one.cancel()
            await asyncio.gather(*slices, return_exceptions=True)

    async def _until_finished(self, prefix: str, batch: str) -> SliceResult:
        tenant = "new" if prefix == "new" else "busy"
        slice_ = request(tenant=tenant, batch_id="batch_" + batch * 32, ingest_prefix=prefix, slice_seconds=5)
        while True:
            self.execution.next_attempt()
            result = await self.execution.turn(slice_)
            if result is not None:
                return result
            # Temporal starts it again, later after a deferral.
            await asyncio.sleep(1.0 if self.execution.circuit(MODEL).is_open else 0.1)

    async def _answer(self, http_request: httpx.Request) -> httpx.Response:
        # Answers that all took as long would come together, and all that wait would look for room at once.
        await asyncio.sleep(self._seconds * (0.5 + len(self.execution.sent) * 0.618 % 1))
        return status(503) if self.is_unavailable else ok("")


def plenty(_: Worker) -> None:
    pass


def few_bytes(worker: Worker) -> None:
    """Make the worker expect responses so large that only four requests fit into its memory budget."""
    budget = worker.execution.context.budget
    budget.observe_response(worker.execution.settings.byte_budget // 2 // 5)
    budget.observe_response = lambda answer_bytes: None


def an_outage(worker: Worker) -> None:
    circuit = worker.execution.circuit(MODEL)
    for _ in range(20):
        circuit.record_failure(circuit.begin("busy"), "503", at_once=True)


@pytest.mark.parametrize("scarce", [plenty, few_bytes, an_outage], ids=lambda scarce: scarce.__name__)
@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("seconds", [0.05, 3.0], ids=["quick", "slow"])
async def test_a_newcomer_gets_its_share(
    scarce: Callable[[Worker], None], in_flight: int, seconds: float
) -> None:
    worker = Worker(answer_seconds=seconds, model_in_flight=in_flight)
    async with worker.busy():
        scarce(worker)
        sent = len(worker.execution.sent)
        await eventually(
            lambda: worker.execution.circuit(MODEL).is_open or len(worker.execution.sent) > sent + 50
        )
        result, others = await worker.newcomer()
    assert result.completed == NEW_LINES
    assert others <= 4 * (NEW_LINES + in_flight + SLOTS)
