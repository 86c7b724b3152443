"""A batch whose input cannot be read, or whose files cannot be written, says so until it goes on."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from activities.slices.waiting import WaitingSignals
from batchwright.contracts.batch import BatchOrder, WaitingReason
from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.execution import SliceRequest
from batchwright.contracts.finalization import FinalizeRequest
from batchwright.contracts.openai import BatchStatus, Endpoint
from batchwright.database.waiting_base import Source
from batchwright.rules.ids import new_batch_id
from tests.fakes.database import MemoryDatabase
from worker.waits import Telling

STORAGE = ApplicationError("no /objects.", type=Failure.STORAGE_UNAVAILABLE)
BACKENDS = ApplicationError(
    "No backend has told yet.", type=Failure.DEFERRED, category=ApplicationErrorCategory.BENIGN
)
CANCEL = ApplicationError("a cancel", type=Failure.CANCEL_ACCEPTED, category=ApplicationErrorCategory.BENIGN)
TURN_OVER = ApplicationError("on", type=Failure.TURN_OVER, category=ApplicationErrorCategory.BENIGN)
DAMAGED = ApplicationError("torn", type=Failure.PLAN_DAMAGED, non_retryable=True)
NOW = datetime.now(UTC)
ORDER = BatchOrder(
    batch_id=new_batch_id(),
    tenant="acme",
    input_file_id="file-1",
    endpoint=Endpoint.CHAT_COMPLETIONS,
    completion_window="24h",
    created_at=NOW,
    expires_at=NOW + timedelta(days=1),
)
FINALIZE = FinalizeRequest(
    order=ORDER,
    prefix="p",
    models=[],
    total=1,
    status=BatchStatus.COMPLETED,
    unsettled=LineCode.BATCH_FAILED,
    errors=[],
)
SLICE = SliceRequest(
    batch_id=ORDER.batch_id,
    tenant="acme",
    endpoint=Endpoint.CHAT_COMPLETIONS,
    prefix="p",
    model="a",
    safe="a",
    number=0,
    closes_at=ORDER.expires_at,
)


class Step(ActivityInboundInterceptor):
    def __init__(self, does: Callable[[], Awaitable[object]]) -> None:
        """Nothing comes after it."""
        self._does = does

    async def execute_activity(self, input: ExecuteActivityInput) -> object:
        return await self._does()


class House:
    """`failing` is what the worker cannot reach."""

    def __init__(self) -> None:
        self.told: list[WaitingReason] = []
        self.failing = ""
        self.table = MemoryDatabase().waiting
        self.signals = WaitingSignals(self._tell, self.table)

    async def _tell(self, batch_id: str, reason: WaitingReason) -> None:
        assert batch_id == ORDER.batch_id
        self.told.append(reason)

    async def attempt(
        self, step: str, given: object, does: Callable[[], Awaitable[object]], number: int = 1
    ) -> None:
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, activity_type=step, attempt=number)
        telling = Telling(Step(does), self.signals, lambda: self.failing)
        input = ExecuteActivityInput(fn=does, args=[given], executor=None, headers={})
        try:
            await environment.run(telling.execute_activity, input)
        finally:
            await self.signals.settle()

    async def fails(self, step: str, given: object, error: Exception) -> None:
        async def does() -> object:
            raise error

        with pytest.raises(type(error)):
            await self.attempt(step, given, does)

    async def succeeds(self, step: str, given: object) -> None:
        async def does() -> object:
            return None

        await self.attempt(step, given, does, number=2)

    async def reasons(self) -> list[str]:
        return [told.reason for told in await self.table.of_source(Source.WORKER, NOW)]


@pytest.fixture
def house() -> House:
    return House()


@pytest.mark.parametrize(
    ("step", "given", "error", "reason"),
    [
        ("ingest", ORDER, STORAGE, "its input cannot be prepared now: no /objects"),
        ("ingest", ORDER, BACKENDS, "its input cannot be prepared now: No backend has told yet"),
        ("finalize", FINALIZE, STORAGE, "its files cannot be written now: no /objects"),
        (
            "finalize",
            FINALIZE,
            ValueError("of a bug"),
            "its files cannot be written now: something nobody expected, which the worker's log has",
        ),
    ],
)
async def test_a_step_that_fails_and_is_tried_again_says_so_until_an_attempt_succeeds(
    house: House, step: str, given: object, error: Exception, reason: str
) -> None:
    await house.fails(step, given, error)
    assert await house.reasons() == [reason]
    await house.succeeds(step, given)
    assert await house.reasons() == []
    assert [(told.model, told.reason) for told in house.told] == [("", reason), ("", "")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (STORAGE, "no /objects"),
        (ValueError("of a bug"), "something nobody expected, which the worker's log has"),
    ],
)
async def test_a_slice_that_fails_and_is_tried_again_says_so(
    house: House, error: Exception, reason: str
) -> None:
    await house.fails("run_slice", SLICE, error)
    assert await house.reasons() == [f"its lines cannot be asked now: {reason}"]
    assert [told.model for told in house.told] == ["a"]


@pytest.mark.parametrize("error", [BACKENDS, TURN_OVER])
async def test_a_slice_that_is_put_off_has_said_why_itself(house: House, error: Exception) -> None:
    await house.fails("run_slice", SLICE, error)
    assert house.told == []


@pytest.mark.parametrize("error", [CANCEL, DAMAGED])
async def test_what_is_not_tried_again_for_that_reason_is_no_wait(house: House, error: Exception) -> None:
    await house.fails("finalize", FINALIZE, error)
    assert house.told == []


async def test_an_attempt_that_goes_on_trying_says_what_its_worker_cannot_reach(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.waits._LOOK_SECONDS", 0.0)

    async def does() -> object:
        house.failing = "storage: no answer within 5 s"
        while not await house.reasons():  # noqa: ASYNC110 - it is told by a task of its own
            await asyncio.sleep(0)
        house.failing = ""
        while await house.reasons():  # noqa: ASYNC110
            await asyncio.sleep(0)
        return None

    await house.attempt("ingest", ORDER, does)
    reasons = [told.reason for told in house.told]
    assert reasons == ["its input cannot be prepared now: storage: no answer within 5 s", ""]
