"""Metrics of activity attempts, and the limit on retries after unknown exceptions."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import cast

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from batchwright.activities.execution.slice_state.line_quarantine import attempt_history
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.execution import RELEASED, SliceResult
from batchwright.contracts.temporal_payloads.finalization import FinalizeResult
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import DatabaseUnavailable
from batchwright.storage.base import StorageUnavailable
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.interceptors.activity_metrics import MAX_UNEXPECTED_FAILURES, ActivityMetricsInbound

TURN_OVER = ApplicationError("on", type=Failure.TURN_OVER, category=ApplicationErrorCategory.BENIGN)
STORAGE = ApplicationError("away", type=Failure.STORAGE_UNAVAILABLE)
DATABASE = ApplicationError("away", type=Failure.DATABASE_UNAVAILABLE)
DAMAGED = ApplicationError("torn", type=Failure.PLAN_DAMAGED, non_retryable=True)


class Step(ActivityInboundInterceptor):
    """An interceptor that runs instead of the activity."""

    def __init__(self, does: Callable[[], Awaitable[object]]) -> None:
        self._does = does

    async def execute_activity(self, input: ExecuteActivityInput) -> object:
        return await self._does()


class Case:
    """Attempts of one activity with shared metrics."""

    def __init__(self, step: str) -> None:
        self._step = step
        self.metrics = Metrics()
        self.beats: list[object] = []
        self.worker_stops = False  # True if the worker of the attempts is shutting down

    async def run(self, outcome: object, *, attempt: int = 1, found: tuple[object, ...] = ()) -> None:
        """Run one attempt with this outcome. `found` are the heartbeat details of the previous attempt."""

        async def does() -> object:
            if self._step != "end":
                assert self.counted("active_workers") == 1
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        environment = ActivityEnvironment()
        details = {"activity_type": self._step, "attempt": attempt, "heartbeat_details": found}
        environment.info = replace(environment.info, **details)
        environment.on_heartbeat = lambda *beat: self.beats.append(beat)
        if self.worker_stops:
            environment.worker_shutdown()
        counting = ActivityMetricsInbound(Step(does), self.metrics)
        given = ExecuteActivityInput(fn=does, args=[], executor=None, headers={})
        await environment.run(counting.execute_activity, given)

    async def fail(self, error: Exception, *, attempt: int = 1, found: tuple[object, ...] = ()) -> None:
        with pytest.raises(type(error)):
            await self.run(error, attempt=attempt, found=found)

    async def fails_as(self, error: Exception, found: tuple[object, ...] = ()) -> ApplicationError:
        with pytest.raises(ApplicationError) as raised:
            await self.run(error, attempt=2, found=found)
        return raised.value

    @property
    def last_beat(self) -> tuple[object, ...]:
        return cast("tuple[object, ...]", self.beats[-1])

    def counted(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value("batchwright_" + name, labels)

    def recovered(self, status: str, action: str) -> float | None:
        return self.counted("batch_startup_recovery_total", status=status, action=action)


async def test_a_step_uses_a_slot_while_it_runs() -> None:
    case = Case("ingest")
    await case.run(IngestResult())
    assert case.counted("active_workers") == 0


async def test_a_failed_attempt_is_counted_by_its_type_and_retried() -> None:
    case = Case("finalize")
    await case.fail(STORAGE)
    await case.fail(DATABASE)
    await case.fails_as(ZeroDivisionError())
    assert case.counted("step_failures_total", step="finalize", type=Failure.STORAGE_UNAVAILABLE) == 1
    assert case.counted("step_failures_total", step="finalize", type=Failure.UNEXPECTED) == 1
    assert case.counted("jobs_processed_total", result="re_enqueued", reason="system_error") == 2
    assert case.counted("jobs_processed_total", result="re_enqueued", reason="db_transient") == 1
    assert case.counted("active_workers") == 0


async def test_a_failure_that_is_never_retried_is_not_counted_as_retried() -> None:
    case = Case("finalize")
    await case.fail(DAMAGED)
    assert case.counted("step_failures_total", step="finalize", type=Failure.PLAN_DAMAGED) == 1
    assert case.counted("jobs_processed_total", result="re_enqueued", reason="system_error") is None


async def test_the_end_of_a_turn_is_not_a_failure() -> None:
    case = Case("run_slice")
    await case.fail(TURN_OVER)
    assert case.counted("step_failures_total", step="run_slice", type=Failure.TURN_OVER) is None
    assert case.counted("jobs_processed_total", result="re_enqueued", reason="guard_shutdown") is None


async def test_an_attempt_that_ends_normally_records_its_end_for_the_next() -> None:
    case = Case("run_slice")
    await case.fail(TURN_OVER)
    assert case.last_beat[-1] == RELEASED
    await case.run(object(), attempt=2, found=(RELEASED,))
    assert case.recovered("in_progress", "re_enqueued") is None


async def test_a_slice_that_ends_before_its_first_heartbeat_hides_no_crash_after_it() -> None:
    """Attempt 2 crashes before its first heartbeat. So attempt 3 only gets the last heartbeat of
    attempt 1.
    """
    case = Case("run_slice")
    await case.fail(TURN_OVER)
    found = [each.model_dump() if isinstance(each, SliceResult) else each for each in case.last_beat]
    assert attempt_history(2, found).crashes == 0
    assert attempt_history(3, found).crashes == 1


async def test_an_attempt_that_a_shutdown_cancels_records_its_end() -> None:
    case = Case("ingest")
    with pytest.raises(asyncio.CancelledError):
        await case.run(asyncio.CancelledError())
    assert case.beats == [(RELEASED,)]


@pytest.mark.parametrize("end", [asyncio.CancelledError(), TURN_OVER, DATABASE])
async def test_a_step_that_a_stopping_worker_returns_is_counted_once(end: BaseException) -> None:
    case = Case("run_slice")
    case.worker_stops = True
    with pytest.raises(type(end)):
        await case.run(end)
    assert case.counted("jobs_processed_total", result="re_enqueued", reason="guard_shutdown") == 1
    assert case.counted("jobs_processed_total", result="re_enqueued", reason="db_transient") is None


async def test_an_attempt_without_a_recorded_end_of_the_last_one_took_over_from_a_lost_worker() -> None:
    case = Case("run_slice")
    await case.fail(TURN_OVER, attempt=2, found=("counts",))
    assert case.recovered("in_progress", "re_enqueued") == 1


async def test_losing_the_slice_to_another_attempt_records_no_end() -> None:
    case = Case("run_slice")
    await case.fail(ApplicationError("lost", type=Failure.OWNERSHIP_LOST))
    assert case.beats == []


@pytest.mark.parametrize(
    ("step", "result", "recovery"),
    [
        ("ingest", IngestResult(), ("validating", "re_enqueued")),
        ("ingest", IngestResult(failed=True), ("validating", "failed")),
        ("finalize", FinalizeResult(status=BatchStatus.COMPLETED), ("finalizing", "finalized")),
        ("finalize", FinalizeResult(status=BatchStatus.CANCELLED), ("cancelling", "cancelled")),
        ("finalize", FinalizeResult(status=BatchStatus.EXPIRED), ("in_progress", "expired")),
        ("finalize", FinalizeResult(status=BatchStatus.FAILED), ("in_progress", "failed")),
        ("end", BatchStatus.CANCELLED, ("cancelling", "cancelled")),
        ("end", BatchStatus.FAILED, ("validating", "failed")),
    ],
)
async def test_the_outcome_of_a_takeover_is_counted(
    step: str, result: object, recovery: tuple[str, str]
) -> None:
    case = Case(step)
    await case.run(result, attempt=2)
    assert case.recovered(*recovery) == 1


async def test_a_failed_takeover_is_counted_too() -> None:
    case = Case("finalize")
    await case.fail(STORAGE, attempt=3)
    assert case.recovered("finalizing", "error") == 1


async def test_finalizations_tried_again_are_counted() -> None:
    case = Case("finalize")
    await case.fail(STORAGE)
    await case.fail(STORAGE, attempt=2, found=(RELEASED,))
    await case.run(FinalizeResult(status=BatchStatus.COMPLETED), attempt=3, found=(RELEASED,))
    assert case.counted("finalization_retries_total", result="error") == 1
    assert case.counted("finalization_retries_total", result="success") == 1
    assert case.recovered("finalizing", "finalized") is None


# Unknown exceptions


@pytest.mark.parametrize("step", ["ingest", "run_slice", "finalize", "end"])
async def test_an_unknown_exception_fails_the_step_after_a_few_attempts(
    step: str, caplog: pytest.LogCaptureFixture
) -> None:
    case, found = Case(step), ()
    for _ in range(MAX_UNEXPECTED_FAILURES - 1):
        failure = await case.fails_as(ZeroDivisionError("secret"), found)
        assert (failure.type, failure.non_retryable) == (Failure.UNEXPECTED, False)
        found = case.last_beat
    failure = await case.fails_as(ZeroDivisionError("secret"), found)
    assert (failure.type, failure.non_retryable) == (Failure.UNEXPECTED, True)
    assert "5 attempts (ZeroDivisionError)" in failure.message
    assert "secret" not in failure.message
    traced = [record for record in caplog.records if record.exc_info]
    assert len(traced) == MAX_UNEXPECTED_FAILURES


async def test_the_count_of_unknown_exceptions_survives_other_ends() -> None:
    case = Case("run_slice")
    await case.fails_as(ZeroDivisionError(), ())
    await case.fail(TURN_OVER, attempt=3, found=case.last_beat)
    await case.fail(DATABASE, attempt=4, found=case.last_beat)
    failure = await case.fails_as(ZeroDivisionError(), case.last_beat)
    assert "2 attempts" in failure.message


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StorageUnavailable("away"), Failure.STORAGE_UNAVAILABLE),
        (DatabaseUnavailable("away"), Failure.DATABASE_UNAVAILABLE),
        (RPCError("away", RPCStatusCode.UNAVAILABLE, b""), Failure.TEMPORAL_UNAVAILABLE),
    ],
)
async def test_an_outage_is_retried_regardless_of_how_often_it_ends_an_attempt(
    error: Exception, kind: Failure
) -> None:
    case, found = Case("end"), ()
    for _ in range(2 * MAX_UNEXPECTED_FAILURES):
        failure = await case.fails_as(error, found)
        assert (failure.type, failure.non_retryable) == (kind, False)
        found = case.last_beat
