"""The model run: the workflow that runs the lines of one model of a batch, in slices.

A slice is a part of the model's lines. Each slice has one activity, which sends the lines of the slice. Each
attempt of the activity is limited in time and called a turn. A limited number of slices is scheduled at a
time. If the history of the workflow is long, another model run gets the slices that are not scheduled yet.
"""

import asyncio
import contextlib
import math
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, RetryState
from temporalio.exceptions import TimeoutError as TemporalTimeout

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.errors import Failure, LineCode
    from batchwright.contracts.temporal_payloads.batch import ModelProgress
    from batchwright.contracts.temporal_payloads.execution import (
        ExecutionActivities,
        ModelRun,
        ModelRunResult,
        SliceRequest,
        SliceResult,
    )
    from batchwright.rules.deadline import Deadline
    from batchwright.workflows.failures import cause_of, code_for_tenant, sentence_for_tenant
    from batchwright.workflows.options import (
        DEADLINE_STOP_MARGIN,
        EVENTS_BETWEEN_HAND_OVERS,
        MIN_STOP_WAIT,
        PROGRESS_INTERVAL,
        STOP_MARGIN,
        slice_options,
    )

# The number of scheduled slices grows with the fleet, because a slice keeps a worker until its last response.
# The maximum limits the events that a pause adds to the history.
_SLICES_PER_WORKER = 4
MAX_OUTSTANDING = 256


@workflow.defn
class ModelRunWorkflow:
    """The workflow that runs slices of one model of a batch. A slice is a part of the model's lines.

    Signals pause, resume or stop the run.
    """

    @workflow.init
    def __init__(self, run: ModelRun) -> None:
        self._scheduler = SliceScheduler(run)

    @workflow.signal
    def stop(self) -> None:
        self._scheduler.stop()

    @workflow.signal
    def pause(self) -> None:
        self._scheduler.pause()

    @workflow.signal
    def resume(self) -> None:
        self._scheduler.resume()

    @workflow.query
    def progress(self) -> ModelProgress:
        return self._scheduler.progress

    @workflow.run
    async def run(self, run: ModelRun) -> ModelRunResult:
        return await self._scheduler.work()


class SliceScheduler:
    """The scheduler of one model's slices. It schedules them as activities, in the order of their numbers.

    It also reports progress to the batch's workflow. `stop`, `pause` and `resume` only record what is
    requested, and `work` acts on it. When the workflow's history is long, another model run gets the slices
    that still have to be scheduled.
    """

    def __init__(self, run: ModelRun) -> None:
        self._run = run
        self._deadline = Deadline.of(run.deadline, run.policy.expiry_grace_seconds)
        self._unfinished = list(run.unfinished_slices)
        self._next = run.next_slice
        self._slices = run.slices_left  # number of slices that this run has to finish
        self._done = 0
        self._paused = run.paused
        self._stopping = False
        self._scheduled: dict[int, workflow.ActivityHandle[SliceResult]] = {}
        self._cancelled: set[int] = set()  # cancelled by this scheduler; used for membership only
        self._completed = self._failed = 0
        self._hand_over_from = 0  # length of the history from which slices may be handed over
        self._failure: ActivityError | None = None
        self._over_cap = False  # a slice has found that the batch has reached the cap on its cost
        self._ended = False
        self._last_report = (workflow.now(), self._done)

    def stop(self) -> None:
        """Cancel the scheduled slices and end the run. A second call has no effect."""
        self._stopping = True

    def pause(self) -> None:
        """Cancel the scheduled slices, and schedule none until `resume`. The deadline stays the same."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    @property
    def progress(self) -> ModelProgress:
        return self._run.progress(self._done)

    async def work(self) -> ModelRunResult:
        """Run the slices until all have ended, the run is stopped, or the deadline passes.

        Return the number of finished slices, and the numbers of completed and failed lines in these slices.
        Slices that this run has handed over to another model run are neither awaited nor counted.

        Raises:
            ApplicationError: a slice failed permanently.
        """
        while not self._ending and self._has_work():
            if self._paused:
                await self._pause()
            elif self._should_hand_over():
                await self._hand_over()
            else:
                self._fill()
                await self._report_progress()
                await workflow.wait_condition(self._should_wake)
        await self._stop()
        self._ended = True
        self._update_details()
        if self._failure is not None:
            raise self._permanent_failure(self._failure)
        return ModelRunResult(
            finished=self._done == self._slices,
            over_cap=self._over_cap,
            slices_done=self._done,
            completed=self._completed,
            failed=self._failed,
        )

    # State

    @property
    def _ending(self) -> bool:
        return self._stopping or self._failure is not None or self._over_cap

    @property
    def _schedulable(self) -> bool:
        """True if slices still have to be scheduled and the deadline has not passed."""
        slices_left = bool(self._unfinished) or self._next < self._run.slices
        return slices_left and not self._deadline.passed(workflow.time())

    def _has_work(self) -> bool:
        return bool(self._scheduled) or self._schedulable

    def _has_room(self) -> bool:
        by_workers = min(MAX_OUTSTANDING, _SLICES_PER_WORKER * self._run.workers)
        return len(self._scheduled) < max(self._run.policy.outstanding_slices, by_workers)

    def _should_wake(self) -> bool:
        """Return True if the main loop of `work` has something to do.

        Temporal calls this after every event of the workflow, so it must be cheap.
        """
        if self._ending or self._paused or not self._has_work():
            return True
        return self._schedulable and (self._has_room() or self._should_hand_over())

    def _should_hand_over(self) -> bool:
        """Return True if another model run should get the slices that still have to be scheduled.

        The result is True if there are such slices and the workflow's history is too long.
        """
        info, limit = workflow.info(), self._run.policy.hand_over_events
        if not self._schedulable or info.parent is None:
            return False
        length = info.get_current_history_length()
        is_long = info.is_continue_as_new_suggested() or 0 < limit <= length
        return is_long and length >= self._hand_over_from

    # Scheduling

    def _fill(self) -> None:
        while self._schedulable and self._has_room():
            if self._unfinished:
                self._start(self._unfinished.pop(0))
            else:
                self._next += 1
                self._start(self._next - 1)
        self._update_details()

    def _start(self, number: int) -> None:
        handle = workflow.start_activity_method(
            ExecutionActivities.run_slice,
            SliceRequest.of(self._run, number),
            **slice_options(self._run, number, workflow.now()),
        )
        self._scheduled[number] = handle
        handle.add_done_callback(lambda ended: self._on_end(number, ended))

    def _on_end(self, number: int, ended: "asyncio.Task[SliceResult]") -> None:
        del self._scheduled[number]
        error = None if ended.cancelled() else ended.exception()
        result = None if ended.cancelled() or error is not None else ended.result()
        if result is not None and result.workers and result.workers != self._run.workers:
            self._run = self._run.model_copy(update={"workers": result.workers})
        if result is not None and result.finished:
            self._done += 1
            self._completed += result.completed
            self._failed += result.failed
        elif result is not None and result.over_cap:
            self._unfinished.append(number)
            self._over_cap = True
        elif result is not None and result.target_queue:
            self._move(number, result.target_queue)
        elif number in self._cancelled:
            self._unfinished.append(number)  # after a cancel, any outcome only means that the attempt ended
        elif isinstance(error, ActivityError) and not _ran_out_of_time(error):
            self._unfinished.append(number)
            self._failure = self._failure or error
        # In all other cases, the deadline ended the slice before it was finished.
        self._cancelled.discard(number)
        self._update_details()

    def _move(self, number: int, queue: str) -> None:
        """Schedule slice `number` again, on the task queue `queue`. All later slices use this queue, too.

        Other slices may still be scheduled on the old queue. The next attempt of such a slice sends nothing,
        and reports that the slice must move.
        """
        self._unfinished.append(number)
        queue_changes = self._run.queue_changes + (queue != self._run.queue)
        self._begin_generation(queue=queue, queue_changes=queue_changes)

    def _begin_generation(self, **changes: object) -> None:
        """Increase the run's generation, a number that grows whenever slices are scheduled again.

        Call this before slices are scheduled again. The generation shows which of two attempts of a slice is
        newer. Their attempt numbers do not show it, because Temporal counts from 1 again when a slice is
        scheduled again.

        Args:
            changes: new values of other fields of `ModelRun`, such as `queue`.
        """
        generation = self._run.generation + 1
        self._run = self._run.model_copy(update={"generation": generation, **changes})

    # Cancelling slices

    def _cancel_all(self) -> None:
        for number, handle in list(self._scheduled.items()):
            if number not in self._cancelled:
                self._cancelled.add(number)
                handle.cancel()

    async def _pause(self) -> None:
        self._cancel_all()
        self._update_details()
        await workflow.wait_condition(lambda: not self._paused or self._ending or not self._has_work())
        self._begin_generation()

    async def _stop(self) -> None:
        """Cancel the scheduled slices and wait until they return.

        Slices that a crashed worker was running never return. So the wait ends at the latest after the grace
        period for requests in flight, plus a margin.
        """
        self._cancel_all()
        if not self._scheduled:
            return
        now = workflow.time()
        grace = min(self._run.policy.cancel_grace_seconds, self._deadline.grace_remaining(now))
        margin = DEADLINE_STOP_MARGIN if self._deadline.passed(now) else STOP_MARGIN
        # Slices know the deadline. If it passed long ago, no worker runs the slices, so the wait is short.
        max_wait = max(timedelta(seconds=grace) + margin, MIN_STOP_WAIT)
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: not self._scheduled, timeout=max_wait, timeout_summary="grace of the stopped slices"
            )

    def _permanent_failure(self, error: ActivityError) -> ApplicationError:
        data = {"model": self._run.model, "error": cause_of(error)}
        workflow.logger.error("slice failed", extra=data)
        crashed = code_for_tenant(error) == LineCode.WORKER_CRASHED
        kind = Failure.WORKER_CRASHED if crashed else Failure.MODEL_RUN_FAILED
        return ApplicationError(sentence_for_tenant(error), type=kind, non_retryable=True)

    # A long history

    async def _hand_over(self) -> None:
        """Let another model run (child workflow) schedule the slices that are not scheduled yet.

        The batch's workflow starts the other run at once. The scheduled slices stay with this run, and this
        run ends when they have ended. Continue-as-new is not used, because it would end the requests in
        flight of the scheduled slices. These requests would be sent and paid again.

        After a pause, or after a move to another task queue, slices of this run have to be scheduled again.
        If the history has grown by at least EVENTS_BETWEEN_HAND_OVERS events since the last hand-over,
        another model run gets these slices, too.
        """
        info = workflow.info()
        assert info.parent is not None
        rest = self._run.model_copy(
            update={
                "next_slice": self._next,
                "unfinished_slices": sorted(self._unfinished),
                "generation": self._run.generation + 1,
            }
        )
        self._hand_over_from = info.get_current_history_length() + EVENTS_BETWEEN_HAND_OVERS
        try:
            await workflow.get_external_workflow_handle(info.parent.workflow_id).signal("hand_over", rest)
        except FailureError:  # for example, the batch has received the most signals that Temporal allows
            workflow.logger.warning("hand-over signal failed")
            return
        self._slices -= rest.slices_left
        self._next = self._run.slices
        self._unfinished = [slice_ for slice_ in self._unfinished if slice_ not in rest.unfinished_slices]
        self._update_details()

    # Reporting

    async def _report_progress(self) -> None:
        parent, (at, done) = workflow.info().parent, self._last_report
        step = math.ceil(self._run.slices / self._run.progress_reports)
        if parent is None or workflow.now() - at < PROGRESS_INTERVAL or self._done - done < step:
            return
        self._last_report = (workflow.now(), self._done)
        try:
            handle = workflow.get_external_workflow_handle(parent.workflow_id)
            await handle.signal("progress", self.progress)
        except FailureError:
            workflow.logger.warning("progress signal failed")

    def _update_details(self) -> None:
        done = f"{self._done} of {self._slices} slices done"
        if self._ended:
            return workflow.set_current_details(f"**ended**, {done}")
        state = "paused" if self._paused else "stopping" if self._ending else "running"
        workflow.set_current_details(f"**{state}**, {done}, {len(self._scheduled)} scheduled")


def _ran_out_of_time(error: ActivityError) -> bool:
    """Return True if the error is a timeout. For a slice, this means that the batch's deadline has passed."""
    return error.retry_state == RetryState.TIMEOUT or isinstance(error.cause, TemporalTimeout)
