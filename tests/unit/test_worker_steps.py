"""What is counted around an attempt of a step."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import HANDED_BACK
from batchwright.contracts.finalization import FinalizeResult
from batchwright.contracts.ingestion import IngestResult
from batchwright.contracts.openai import BatchStatus
from batchwright.telemetry.metrics import Metrics
from worker.steps import Attempt

TURN_OVER = ApplicationError("on", type=Failure.TURN_OVER, category=ApplicationErrorCategory.BENIGN)
STORAGE = ApplicationError("away", type=Failure.STORAGE_UNAVAILABLE)
DATABASE = ApplicationError("away", type=Failure.DATABASE_UNAVAILABLE)
DAMAGED = ApplicationError("torn", type=Failure.PLAN_DAMAGED, non_retryable=True)


class Step(ActivityInboundInterceptor):
    """What the activity does, in its stead."""

    def __init__(self, does: Callable[[], Awaitable[object]]) -> None:
        self._does = does

    async def execute_activity(self, input: ExecuteActivityInput) -> object:
        return await self._does()


class Case:
    """Attempts of one step, counted together."""

    def __init__(self, step: str) -> None:
        self._step = step
        self.metrics = Metrics()
        self.beats: list[object] = []

    async def run(self, outcome: object, *, attempt: int = 1, found: tuple[object, ...] = ()) -> None:
        """`found` is the last heartbeat of the attempt before."""

        async def does() -> object:
            if self._step != "end":
                assert self.counted("active_workers") == 1
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        environment = ActivityEnvironment()
        details = {"activity_type": self._step, "attempt": attempt, "heartbeat_details": found}
        environment.info = replace(environment.info, **details)
        environment.on_heartbeat = lambda *beat: self.beats.append(beat)
        counting = Attempt(Step(does), self.metrics)
        given = ExecuteActivityInput(fn=does, args=[], executor=None, headers={})
        await environment.run(counting.execute_activity, given)

    async def fail(self, error: Exception, *, attempt: int = 1, found: tuple[object, ...] = ()) -> None:
        with pytest.raises(type(error)):
            await self.run(error, attempt=attempt, found=found)

    def counted(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value("batchwright_" + name, labels)

    def recovered(self, status: str, action: str) -> float | None:
        return self.counted("batch_startup_recovery_total", status=status, action=action)


async def test_a_step_takes_a_slot_while_it_runs() -> None:
    case = Case("ingest")
    await case.run(IngestResult())
    assert case.counted("active_workers") == 0


async def test_a_failed_attempt_is_counted_by_its_type_and_given_back() -> None:
    case = Case("finalize")
    await case.fail(STORAGE)
    await case.fail(DATABASE)
    await case.fail(ZeroDivisionError())
    assert case.counted("step_failures_total", step="finalize", type=Failure.STORAGE_UNAVAILABLE) == 1
    assert case.counted("step_failures_total", step="finalize", type="other") == 1
    assert case.counted("jobs_processed_total", result="re_enqueued", reason="system_error") == 2
    assert case.counted("jobs_processed_total", result="re_enqueued", reason="db_transient") == 1
    assert case.counted("active_workers") == 0


async def test_a_failure_that_is_never_retried_gives_nothing_back() -> None:
    case = Case("finalize")
    await case.fail(DAMAGED)
    assert case.counted("step_failures_total", step="finalize", type=Failure.PLAN_DAMAGED) == 1
    assert case.counted("jobs_processed_total", result="re_enqueued", reason="system_error") is None


async def test_a_turns_end_is_no_failure() -> None:
    case = Case("run_slice")
    await case.fail(TURN_OVER)
    assert case.counted("step_failures_total", step="run_slice", type=Failure.TURN_OVER) is None
    assert case.counted("jobs_processed_total", result="re_enqueued", reason="guard_shutdown") is None


async def test_an_attempt_that_ends_by_itself_leaves_word_for_the_next() -> None:
    case = Case("run_slice")
    await case.fail(TURN_OVER)
    assert case.beats == [(HANDED_BACK,)]
    await case.run(object(), attempt=2, found=(HANDED_BACK,))
    assert case.recovered("in_progress", "re_enqueued") is None


async def test_an_attempt_that_finds_no_word_took_over_from_a_lost_worker() -> None:
    case = Case("run_slice")
    await case.fail(TURN_OVER, attempt=2, found=("counts",))
    assert case.recovered("in_progress", "re_enqueued") == 1


async def test_losing_the_slice_to_another_attempt_leaves_no_word() -> None:
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
async def test_what_became_of_a_step_that_was_taken_over(
    step: str, result: object, recovery: tuple[str, str]
) -> None:
    case = Case(step)
    await case.run(result, attempt=2)
    assert case.recovered(*recovery) == 1


async def test_a_takeover_that_fails_is_one_too() -> None:
    case = Case("finalize")
    await case.fail(STORAGE, attempt=3)
    assert case.recovered("finalizing", "error") == 1


async def test_finalizations_tried_again_are_counted() -> None:
    case = Case("finalize")
    await case.fail(STORAGE)
    await case.fail(STORAGE, attempt=2, found=(HANDED_BACK,))
    await case.run(FinalizeResult(status=BatchStatus.COMPLETED), attempt=3, found=(HANDED_BACK,))
    assert case.counted("finalization_retries_total", result="error") == 1
    assert case.counted("finalization_retries_total", result="success") == 1
    assert case.recovered("finalizing", "finalized") is None
