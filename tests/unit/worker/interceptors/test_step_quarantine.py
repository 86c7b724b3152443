"""Activities that crash their workers run one at a time, and fail after more crashes. No other activity fails
with them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ActivityOutboundInterceptor, ExecuteActivityInput

from batchwright.activities.heartbeat import previous_failures
from batchwright.contracts.errors import Failure
from batchwright.contracts.message import Message
from batchwright.contracts.temporal_payloads.execution import RELEASED
from batchwright.storage.base import StorageUnavailable
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.interceptors.activity_metrics import ActivityMetricsInbound
from batchwright.worker.interceptors.attempt_history import (
    CRASH_MEMORY,
    CRASHES_BEFORE_QUARANTINE,
    StepCrashes,
    step_crashes,
)
from batchwright.worker.interceptors.step_quarantine import (
    MAX_QUARANTINED_CRASHES,
    AcknowledgedHeartbeat,
    StepQuarantineInbound,
)

CRASHES = CRASHES_BEFORE_QUARANTINE + MAX_QUARANTINED_CRASHES
NOW = datetime.now(UTC)
SEEN_AT = NOW.timestamp()
TWO_CRASHES = [{"attempt": 2, "crashes": 1}]  # heartbeat of the second attempt, whose worker then crashed
QUARANTINED = {"attempt": 3, "crashes": 2, "quarantined_crashes": 1, "is_quarantined": True}


class Killed(Exception):
    """An exception that stands for a killed process: what the attempt does after it must not count."""


async def dies() -> object:
    raise Killed


async def ends() -> object:
    return "done"


class Body(ActivityInboundInterceptor):
    """The activity itself. It stores the outbound interceptors, which pass on its heartbeats."""

    def __init__(self, does: Callable[[], Awaitable[object]]) -> None:
        self._does = does
        self.outbound: ActivityOutboundInterceptor | None = None

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self.outbound = outbound

    async def execute_activity(self, input: ExecuteActivityInput) -> object:
        return await self._does()


class Step(ActivityOutboundInterceptor):
    """The attempts of one activity, and its heartbeats at the Temporal server."""

    def __init__(self, details: Sequence[object] = (), attempt: int = 0) -> None:
        self.details, self.attempt = list(details), attempt
        self.runs = 0
        self.started_at = NOW
        self.heartbeat_timeout = timedelta(hours=1)
        self.has_beaten = asyncio.Event()

    def heartbeat(self, *details: object) -> None:
        self.has_beaten.set()
        self.details = [each.model_dump() if isinstance(each, Message) else each for each in details]

    async def acknowledged(self, details: Sequence[object]) -> None:
        self.heartbeat(*details)

    async def run(
        self,
        does: Callable[[], Awaitable[object]],
        lock: asyncio.Lock | None = None,
        acknowledged: AcknowledgedHeartbeat | None = None,
        *,
        metrics: Metrics | None = None,
    ) -> object:
        """Run the next attempt of the activity.

        Args:
            does: what the activity does.
            lock: the lock of the attempt's process, which quarantined activities hold.
            acknowledged: sends a heartbeat, and returns when the server has it.
            metrics: where the end of the attempt is counted; None to report no end, as after a kill.
        """
        self.attempt += 1
        body = Body(self._counted(does))
        inbound: ActivityInboundInterceptor = StepQuarantineInbound(
            body, lock or asyncio.Lock(), acknowledged or self.acknowledged
        )
        if metrics is not None:
            inbound = ActivityMetricsInbound(inbound, metrics)
        inbound.init(self)
        environment = ActivityEnvironment()
        environment.info = replace(
            environment.info,
            attempt=self.attempt,
            heartbeat_details=self.details,
            heartbeat_timeout=self.heartbeat_timeout,
            started_time=self.started_at,
        )
        assert body.outbound is not None
        environment.on_heartbeat = body.outbound.heartbeat
        given = ExecuteActivityInput(fn=does, args=[], executor=None, headers={})
        return await environment.run(inbound.execute_activity, given)

    async def crash(self, lock: asyncio.Lock | None = None) -> None:
        with pytest.raises(Killed):
            await self.run(dies, lock)

    async def fail(self, error: BaseException) -> None:
        """Run the next attempt, which ends with this error. Its worker continues to run."""

        async def fails() -> object:
            raise error

        with pytest.raises((ApplicationError, asyncio.CancelledError)):
            await self.run(fails, metrics=Metrics())

    def _counted(self, does: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
        async def counted() -> object:
            self.runs += 1
            return await does()

        return counted


async def test_a_step_that_crashes_each_worker_fails_after_five_crashes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    step = Step()
    for _ in range(CRASHES):
        await step.crash()
    with pytest.raises(ApplicationError) as given_up:
        await step.run(dies)
    assert (given_up.value.type, given_up.value.non_retryable) == (Failure.WORKER_CRASHED, True)
    assert step.runs == CRASHES == 5
    assert "a step crashed its workers and was given up" in caplog.messages


async def test_a_step_whose_crashes_stop_in_time_succeeds() -> None:
    step = Step()
    for _ in range(CRASHES - 1):
        await step.crash()
    assert await step.run(ends) == "done"


@pytest.mark.parametrize(
    "error",
    [
        StorageUnavailable("storage does not answer"),
        ValueError("of a bug"),
        asyncio.CancelledError(),  # the worker shuts down
        ApplicationError("wait", type=Failure.OVER_QUOTA, category=ApplicationErrorCategory.BENIGN),
    ],
)
async def test_an_attempt_that_ends_early_hides_no_crash_before_it(error: BaseException) -> None:
    step = Step()
    for _ in range(CRASHES):
        await step.crash()
        await step.fail(error)
    with pytest.raises(ApplicationError) as given_up:
        await step.run(ends)
    assert given_up.value.type == Failure.WORKER_CRASHED


async def test_crashes_between_hours_without_a_crash_are_forgotten() -> None:
    """Finalization may wait for its storage for days. During this time, each outage of Temporal looks like a
    crash.
    """
    step = Step()
    for _ in range(2 * CRASHES):
        await step.crash()
        for _ in range(3):
            step.started_at += CRASH_MEMORY * 0.6
            await step.fail(StorageUnavailable("storage does not answer"))
    assert await step.run(ends) == "done"


async def test_a_step_that_runs_for_hours_before_each_crash_fails() -> None:
    step = Step()
    for _ in range(CRASHES):
        await step.crash()
        step.started_at += 3 * CRASH_MEMORY
        await step.fail(StorageUnavailable("storage does not answer"))
    with pytest.raises(ApplicationError) as given_up:
        await step.run(ends)
    assert given_up.value.type == Failure.WORKER_CRASHED


async def test_an_attempt_that_ends_early_is_no_crash() -> None:
    step = Step()
    for _ in range(2 * CRASHES):
        await step.fail(StorageUnavailable("storage does not answer"))
    assert await step.run(ends) == "done"
    assert step_crashes(step.attempt, step.details, NOW) == StepCrashes(attempt=step.attempt)


async def test_the_server_knows_of_the_quarantine_before_the_step_can_crash() -> None:
    step, known = Step(TWO_CRASHES, attempt=2), list[object]()

    async def looks() -> object:
        known.extend(step.details)
        return None

    await step.run(looks)
    assert known == [
        StepCrashes(attempt=3, crashes=2, is_quarantined=True, crash_seen_at=SEEN_AT).model_dump()
    ]


async def test_a_quarantined_step_holds_the_lock_of_its_process_until_it_ends() -> None:
    lock, was_locked = asyncio.Lock(), list[bool]()

    async def looks() -> object:
        was_locked.append(lock.locked())
        return None

    await Step().run(looks, lock)
    await Step(TWO_CRASHES, attempt=2).run(looks, lock)
    assert was_locked == [False, True]
    await Step(TWO_CRASHES, attempt=2).crash(lock)
    assert not lock.locked()


async def test_a_crash_while_a_step_waits_for_its_turn_does_not_count_in_quarantine() -> None:
    """Another activity of the same process crashes the process each time. This activity only waits for the
    lock.
    """
    step = Step(TWO_CRASHES, attempt=2)
    for _ in range(2 * CRASHES):
        lock = asyncio.Lock()
        await lock.acquire()
        step.has_beaten.clear()
        waiting = asyncio.create_task(step.run(dies, lock))
        await step.has_beaten.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert step.runs == 0
    assert await step.run(ends) == "done"


async def test_a_step_that_waits_for_its_turn_sends_heartbeats_and_can_be_cancelled() -> None:
    step, lock = Step(TWO_CRASHES, attempt=2), asyncio.Lock()
    step.heartbeat_timeout = timedelta(milliseconds=30)
    async with lock:
        waiting = asyncio.create_task(step.run(ends, lock))
        for _ in range(3):
            step.has_beaten.clear()
            await step.has_beaten.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert (step.runs, lock.locked()) == (0, False)


async def test_a_worker_that_dies_before_its_first_heartbeat_fails_no_step() -> None:
    step = Step(attempt=100)
    assert await step.run(ends) == "done"


async def test_a_step_does_not_begin_in_quarantine_while_temporal_does_not_answer() -> None:
    async def is_unavailable(details: Sequence[object]) -> None:
        raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")

    step, lock = Step(TWO_CRASHES, attempt=2), asyncio.Lock()
    with pytest.raises(RPCError):
        await step.run(ends, lock, is_unavailable)
    assert step.runs == 0
    assert not lock.locked()


async def test_a_heartbeat_that_repeats_earlier_details_has_each_count_once() -> None:
    """If an attempt ends with an error, it repeats the details of its last heartbeat."""
    step = Step(["unexpected failures: 3", RELEASED], attempt=1)

    async def repeats() -> object:
        activity.heartbeat("own", "unexpected failures: 3", StepCrashes(attempt=1, crashes=1), RELEASED)
        return None

    await step.run(repeats)
    counts = StepCrashes(attempt=2).model_dump()
    assert step.details == ["own", RELEASED, "unexpected failures: 3", counts]


async def test_a_crash_keeps_the_count_of_unknown_exceptions() -> None:
    step = Step(["unexpected failures: 3", RELEASED], attempt=1)

    async def beats_and_dies() -> object:
        activity.heartbeat()
        raise Killed

    with pytest.raises(Killed):
        await step.run(beats_and_dies)
    assert previous_failures(step.details) == 3


@pytest.mark.parametrize(
    ("attempt", "details", "expected"),
    [
        (1, [], StepCrashes(attempt=1)),
        (3, [], StepCrashes(attempt=3, crashes=2, crash_seen_at=SEEN_AT)),
        (
            4,
            TWO_CRASHES,
            StepCrashes(attempt=4, crashes=3, crash_seen_at=SEEN_AT),
        ),  # the third left no heartbeat
        (
            4,
            [QUARANTINED],
            StepCrashes(attempt=4, crashes=3, quarantined_crashes=2, crash_seen_at=SEEN_AT),
        ),
        (
            4,
            [{"attempt": 3, "crashes": 2, "quarantined_crashes": 1}],
            StepCrashes(attempt=4, crashes=3, quarantined_crashes=1, crash_seen_at=SEEN_AT),
        ),
        (
            4,
            [QUARANTINED | {"crash_seen_at": SEEN_AT - 3600}, RELEASED],
            StepCrashes(attempt=4, crashes=2, quarantined_crashes=1, crash_seen_at=SEEN_AT - 3600),
        ),
        (4, [QUARANTINED | {"crash_seen_at": SEEN_AT - 3601}, RELEASED], StepCrashes(attempt=4)),
        (
            6,
            [{"attempt": 3, "crashes": 2}, RELEASED],
            StepCrashes(attempt=6, crashes=4, crash_seen_at=SEEN_AT),
        ),
        (4, [RELEASED], StepCrashes(attempt=4)),  # of a version that did not report crashes
        (1, [{"attempt": 5, "crashes": 4}], StepCrashes(attempt=1)),  # an operator has reset the activity
    ],
)
def test_crashes_are_derived_from_attempts_and_heartbeats(
    attempt: int, details: list[object], expected: StepCrashes
) -> None:
    assert step_crashes(attempt, details, NOW) == expected
