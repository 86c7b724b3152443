"""A batch reports a waiting reason while its input cannot be read or its files cannot be written."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from batchwright.activities.services.waiting_reason_publisher import WaitingReasonPublisher
from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.temporal_payloads.batch import BatchOrder, WaitingReason
from batchwright.contracts.temporal_payloads.execution import RELEASED, SliceRequest
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest
from batchwright.contracts.terms import BatchStatus, Endpoint
from batchwright.database.tables.batches.waiting_reasons import WaitingSource
from batchwright.rules.ids import new_batch_id
from batchwright.worker.interceptors.failure_waiting_reasons import WaitingReasonInbound
from tests.background_tasks import reasons_published
from tests.fakes.memory_database import MemoryDatabase

STORAGE = ApplicationError("no /objects.", type=Failure.STORAGE_UNAVAILABLE)
BACKENDS = ApplicationError(
    "No backend has listed its models yet.", type=Failure.DEFERRED, category=ApplicationErrorCategory.BENIGN
)
CANCEL = ApplicationError("a cancel", type=Failure.CANCEL_ACCEPTED, category=ApplicationErrorCategory.BENIGN)
TURN_OVER = ApplicationError("on", type=Failure.TURN_OVER, category=ApplicationErrorCategory.BENIGN)
DAMAGED = ApplicationError("torn", type=Failure.PLAN_DAMAGED, non_retryable=True)
NOW = datetime.now(UTC)
HEARTBEAT_TIMEOUT = timedelta(seconds=30)
ORDER = BatchOrder(
    batch_id=new_batch_id(),
    tenant="acme",
    input_file_id="file-1",
    endpoint=Endpoint.CHAT_COMPLETIONS,
    completion_window="24h",
    created_at=NOW,
    deadline=NOW + timedelta(days=1),
)
FINALIZE = FinalizeRequest(
    order=ORDER,
    ingest_prefix="p",
    models=[],
    total=1,
    status=BatchStatus.COMPLETED,
    missing_line_code=LineCode.BATCH_FAILED,
    errors=[],
)
SLICE = SliceRequest(
    batch_id=ORDER.batch_id,
    tenant="acme",
    endpoint=Endpoint.CHAT_COMPLETIONS,
    ingest_prefix="p",
    model="a",
    safe_model="a",
    number=0,
    deadline=ORDER.deadline,
)


class Step(ActivityInboundInterceptor):
    def __init__(self, does: Callable[[], Awaitable[object]]) -> None:
        """Create the last interceptor, which has no next one."""
        self._does = does

    async def execute_activity(self, input: ExecuteActivityInput) -> object:
        return await self._does()


class InterceptorFixture:
    """An interceptor and the reasons that it reports.

    Attributes:
        failing: names of the unreachable dependencies.
        seconds: time that has passed since the test began.
    """

    def __init__(self) -> None:
        self.reported: list[WaitingReason] = []
        self.failing = ""
        self.seconds = 0.0
        self.table = MemoryDatabase().waiting
        self.signals = WaitingReasonPublisher(self._report, self.table, lambda: self.seconds, self.now)

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)

    async def _report(self, batch_id: str, reason: WaitingReason) -> None:
        assert batch_id == ORDER.batch_id
        self.reported.append(reason)

    async def attempt(
        self,
        step: str,
        given: object,
        does: Callable[[], Awaitable[object]],
        number: int = 1,
        details: Sequence[object] = (),
    ) -> None:
        environment = ActivityEnvironment()
        environment.info = replace(
            environment.info,
            activity_type=step,
            attempt=number,
            heartbeat_details=details,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            started_time=NOW,
        )
        inbound = WaitingReasonInbound(Step(does), self.signals, lambda: self.failing)
        input = ExecuteActivityInput(fn=does, args=[given], executor=None, headers={})
        try:
            await environment.run(inbound.execute_activity, input)
        finally:
            await reasons_published()

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
        return [row.reason for row in await self.table.get(WaitingSource.WORKER, self.now())]


@pytest.fixture
def fixture() -> InterceptorFixture:
    return InterceptorFixture()


async def test_a_batch_that_waits_for_a_quota_shows_the_quota(fixture: InterceptorFixture) -> None:
    error = ApplicationError(
        "its tenant may have 9 lines enqueued: 8 are, and this batch has 2", type=Failure.OVER_QUOTA
    )
    await fixture.fails("ingest", ORDER, error)
    assert await fixture.reasons() == [error.message]
    await fixture.succeeds("ingest", ORDER)
    assert await fixture.reasons() == []


@pytest.mark.parametrize(("attempt", "shown"), [(2, []), (3, ["the workers that tried it crashed"])])
async def test_a_step_whose_workers_crashed_shows_that_while_another_worker_tries(
    fixture: InterceptorFixture, attempt: int, shown: list[str]
) -> None:
    found = list[str]()

    async def looks() -> object:
        await reasons_published()
        found.extend(await fixture.reasons())
        return None

    await fixture.attempt("ingest", ORDER, looks, number=attempt)
    assert found == [f"its input cannot be prepared now: {reason}" for reason in shown]
    assert await fixture.reasons() == []


async def test_a_step_that_waits_for_a_quota_after_crashes_shows_the_quota_all_the_time(
    fixture: InterceptorFixture,
) -> None:
    error = ApplicationError("no room in the quota", type=Failure.OVER_QUOTA)
    shown = list[list[str]]()

    async def waits() -> object:
        await reasons_published()
        shown.append(await fixture.reasons())
        raise error

    crashes = {"attempt": 3, "crashes": 2, "crash_seen_at": NOW.timestamp()}
    for attempt in (4, 5):
        details = [crashes | {"attempt": attempt - 1}, RELEASED]
        with pytest.raises(ApplicationError):
            await fixture.attempt("ingest", ORDER, waits, attempt, details)
    assert [*shown, await fixture.reasons()] == [[], [error.message], [error.message]]


async def test_a_step_whose_workers_crashed_shows_that_until_the_next_attempt_could_start(
    fixture: InterceptorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "batchwright.worker.interceptors.failure_waiting_reasons._WATCH_INTERVAL_SECONDS", 0.0
    )
    shown, crashed = (
        list[list[str]](),
        ["its input cannot be prepared now: the workers that tried it crashed"],
    )

    async def runs_for_minutes_and_dies() -> object:
        for _ in range(5):
            fixture.seconds += 60
            for _ in range(10):
                await asyncio.sleep(0)
            await reasons_published()
            shown.append(await fixture.reasons())
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await fixture.attempt("ingest", ORDER, runs_for_minutes_and_dies, number=3)
    fixture.seconds += HEARTBEAT_TIMEOUT.total_seconds() + 60
    assert [*shown, await fixture.reasons()] == [crashed] * 6


@pytest.mark.parametrize(
    ("step", "given", "error", "reason"),
    [
        ("ingest", ORDER, STORAGE, "its input cannot be prepared now: object storage is unavailable"),
        (
            "ingest",
            ORDER,
            BACKENDS,
            "its input cannot be prepared now: no backend has reported which models it serves",
        ),
        ("finalize", FINALIZE, STORAGE, "its files cannot be written now: object storage is unavailable"),
        (
            "finalize",
            FINALIZE,
            ValueError("of a bug"),
            "its files cannot be written now: an unexpected error, which is in the worker's log",
        ),
    ],
)
async def test_a_retried_step_has_a_waiting_reason_until_an_attempt_succeeds(
    fixture: InterceptorFixture, step: str, given: object, error: Exception, reason: str
) -> None:
    await fixture.fails(step, given, error)
    assert await fixture.reasons() == [reason]
    await fixture.succeeds(step, given)
    assert await fixture.reasons() == []
    assert [(report.model, report.reason) for report in fixture.reported] == [("", reason), ("", "")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (STORAGE, "object storage is unavailable"),
        (ValueError("of a bug"), "an unexpected error, which is in the worker's log"),
    ],
)
async def test_a_retried_slice_has_a_waiting_reason(
    fixture: InterceptorFixture, error: Exception, reason: str
) -> None:
    await fixture.fails("run_slice", SLICE, error)
    assert await fixture.reasons() == [f"its lines cannot be sent now: {reason}"]
    assert [report.model for report in fixture.reported] == ["a"]


@pytest.mark.parametrize("error", [BACKENDS, TURN_OVER])
async def test_a_deferred_slice_keeps_its_own_waiting_reason(
    fixture: InterceptorFixture, error: Exception
) -> None:
    await fixture.fails("run_slice", SLICE, error)
    assert fixture.reported == []


@pytest.mark.parametrize("error", [CANCEL, DAMAGED])
async def test_a_failure_without_a_retry_is_no_waiting_reason(
    fixture: InterceptorFixture, error: Exception
) -> None:
    await fixture.fails("finalize", FINALIZE, error)
    assert fixture.reported == []


async def test_a_running_attempt_reports_the_dependency_its_worker_cannot_reach(
    fixture: InterceptorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "batchwright.worker.interceptors.failure_waiting_reasons._WATCH_INTERVAL_SECONDS", 0.0
    )

    async def does() -> object:
        fixture.failing = "storage: no answer within 5 s"
        while not await fixture.reasons():
            await asyncio.sleep(0)
        fixture.failing = ""
        while await fixture.reasons():
            await asyncio.sleep(0)
        return None

    await fixture.attempt("ingest", ORDER, does)
    reasons = [reason.reason for reason in fixture.reported]
    sentence = "its input cannot be prepared now: object storage or the database does not answer"
    assert reasons == [sentence, ""]
