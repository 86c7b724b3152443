"""One model's share of a batch: its slices, some at a time, until done, stopped or out of time."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, RetryState
from temporalio.exceptions import TimeoutError as TemporalTimeout

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.batch import ModelProgress
    from batchwright.contracts.errors import Failure
    from batchwright.contracts.execution import (
        ExecutionActivities,
        ModelRun,
        ModelRunResult,
        SliceRequest,
        SliceResult,
    )
    from workflows.failures import cause_of
    from workflows.options import CLOSED_MARGIN, LEAST_WAIT, STOP_MARGIN, slice_turns

# The parent is told of progress this often at most, and never more than about 20 times a run.
_PROGRESS_EVERY = timedelta(seconds=10)
_PROGRESS_STEPS = 20


@workflow.defn
class ModelRunWorkflow:
    """Knows slice numbers only. Handlers set what is wanted; `run` alone schedules, cancels and waits."""

    @workflow.init
    def __init__(self, run: ModelRun) -> None:
        self._run = run
        self._unfinished = list(run.unfinished)
        self._next = run.next_slice
        self._generation = run.generation
        self._queue, self._moves = run.queue, run.moves
        self._paused = run.paused
        self._stopping = run.stopping
        self._outstanding: dict[int, workflow.ActivityHandle[SliceResult]] = {}
        self._withdrawn: set[int] = set()  # cancelled by us; asked for membership only
        self._cut_off = run.cut_off  # slices the deadline ended before they were finished
        self._completed, self._failed = run.completed, run.failed
        self._failure: ActivityError | None = None
        self._told = (workflow.now(), self._done)

    @workflow.signal
    def stop(self) -> None:
        """Cancel what is outstanding and end. Repeats are harmless."""
        self._stopping = True

    @workflow.signal
    def pause(self) -> None:
        """Give the slices back until `resume`; the window goes on running."""
        self._paused = True

    @workflow.signal
    def resume(self) -> None:
        self._paused = False

    @workflow.query
    def progress(self) -> ModelProgress:
        run = self._run
        return ModelProgress(model=run.model, lines=run.lines, slices=run.slices, slices_done=self._done)

    @workflow.run
    async def run(self, run: ModelRun) -> ModelRunResult:
        while not self._ending and self._has_more():
            if self._paused:
                await self._pause()
            elif self._history_is_long():
                await self._continue_as_new()
            else:
                self._fill()
                await self._tell_parent()
                await workflow.wait_condition(self._can_go_on)
        await self._stop()
        self._show(ended=True)
        if self._failure is not None:
            raise self._given_up(self._failure)
        finished = self._done == run.slices
        return ModelRunResult(finished=finished, completed=self._completed, failed=self._failed)

    # What is so

    @property
    def _ending(self) -> bool:
        return self._stopping or self._failure is not None

    @property
    def _closed(self) -> bool:
        return workflow.now() >= self._run.closes_at

    @property
    def _schedulable(self) -> bool:
        return not self._closed and (bool(self._unfinished) or self._next < self._run.slices)

    @property
    def _done(self) -> int:
        return self._next - len(self._unfinished) - len(self._outstanding) - self._cut_off

    def _has_more(self) -> bool:
        return bool(self._outstanding) or self._schedulable

    def _has_room(self) -> bool:
        return len(self._outstanding) < self._run.policy.outstanding_slices

    def _can_go_on(self) -> bool:
        """Whether the main loop has anything to do: asked after every event, so it stays cheap."""
        if self._ending or self._paused or not self._has_more():
            return True
        return self._schedulable and (self._has_room() or self._history_is_long())

    def _history_is_long(self) -> bool:
        """Only asked for while something is left to schedule: the rest of a run always fits."""
        if not self._schedulable:
            return False
        limit, info = self._run.policy.continue_as_new_events, workflow.info()
        return info.is_continue_as_new_suggested() or 0 < limit <= info.get_current_history_length()

    # Scheduling

    def _fill(self) -> None:
        while self._schedulable and self._has_room():
            if self._unfinished:
                self._start(self._unfinished.pop(0))
            else:
                self._next += 1
                self._start(self._next - 1)
        self._show()

    def _start(self, number: int) -> None:
        handle = workflow.start_activity_method(
            ExecutionActivities.run_slice,
            self._request(number),
            **slice_turns(self._run, number, workflow.now(), self._queue),
        )
        self._outstanding[number] = handle
        handle.add_done_callback(lambda ended: self._note_end(number, ended))

    def _request(self, number: int) -> SliceRequest:
        run, policy = self._run, self._run.policy
        return SliceRequest(
            batch_id=run.batch_id,
            tenant=run.tenant,
            weight=run.weight,
            endpoint=run.endpoint,
            prefix=run.prefix,
            model=run.model,
            safe=run.safe,
            number=number,
            generation=self._generation,
            closes_at=run.closes_at,
            slice_seconds=policy.slice_seconds,
            cancel_grace_seconds=policy.cancel_grace_seconds,
            expiry_grace_seconds=policy.expiry_grace_seconds,
            moves=self._moves,
            caller=policy.caller,
        )

    def _note_end(self, number: int, ended: "asyncio.Task[SliceResult]") -> None:
        del self._outstanding[number]
        error = None if ended.cancelled() else ended.exception()
        result = None if ended.cancelled() or error is not None else ended.result()
        if result is not None and result.finished:
            self._completed += result.completed
            self._failed += result.failed
        elif result is not None and result.goes_on_at:
            self._move(number, result.goes_on_at)
        elif number in self._withdrawn:
            self._unfinished.append(number)  # any outcome of a cancelled slice means only that it ended
        elif isinstance(error, ActivityError) and not _ran_out_of_time(error):
            self._unfinished.append(number)
            self._failure = self._failure or error
        else:
            self._cut_off += 1
        self._withdrawn.discard(number)

    def _move(self, number: int, queue: str) -> None:
        """The slice and all that follow go there; those outstanding elsewhere find out in their next turn."""
        self._unfinished.append(number)
        self._generation += 1  # attempt numbers start anew with every activity
        if queue != self._queue:
            self._queue, self._moves = queue, self._moves + 1

    # Giving slices back

    def _withdraw(self) -> None:
        for number, handle in list(self._outstanding.items()):
            if number not in self._withdrawn:
                self._withdrawn.add(number)
                handle.cancel()

    async def _pause(self) -> None:
        self._withdraw()
        self._show()
        await workflow.wait_condition(lambda: not self._paused or self._ending or not self._has_more())
        self._generation += 1  # attempt numbers start anew with every activity

    async def _stop(self) -> None:
        """Ends what is outstanding within its grace, or leaves it: a dead worker must not hold the batch."""
        self._withdraw()
        if not self._outstanding:
            return
        policy = self._run.policy
        left = (self._run.closes_at - workflow.now()).total_seconds()
        grace = min(policy.cancel_grace_seconds, left + policy.expiry_grace_seconds)
        margin = STOP_MARGIN if left > 0 else CLOSED_MARGIN
        # Slices know the deadline: where it passed long ago, with no worker there, none is waited for.
        patience = max(timedelta(seconds=grace) + margin, LEAST_WAIT)
        await self._until_returned(patience, "grace of the stopped slices")

    async def _continue_as_new(self) -> None:
        """Returns, without having continued, when the run is to end or pause instead."""
        turn = timedelta(seconds=self._run.policy.slice_seconds)
        await self._until_returned(turn, "turn of the last slices of this run")
        if not self._ending:
            self._withdraw()
            await workflow.wait_condition(lambda: not self._outstanding or self._ending)
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self._ending or not self._schedulable:
            return
        workflow.continue_as_new(self._carried())

    async def _until_returned(self, patience: timedelta, summary: str) -> None:
        was_ending = self._ending
        try:
            await workflow.wait_condition(
                lambda: not self._outstanding or self._ending != was_ending,
                timeout=patience,
                timeout_summary=summary,
            )
        except TimeoutError:
            return

    def _carried(self) -> ModelRun:
        return self._run.model_copy(
            update={
                "next_slice": self._next,
                "unfinished": sorted(self._unfinished),
                "generation": self._generation + 1,
                "completed": self._completed,
                "failed": self._failed,
                "cut_off": self._cut_off,
                "paused": self._paused,
                "stopping": self._stopping,
                "queue": self._queue,
                "moves": self._moves,
            }
        )

    # Telling

    async def _tell_parent(self) -> None:
        parent, (at, done) = workflow.info().parent, self._told
        step = max(1, self._run.slices // _PROGRESS_STEPS)
        if parent is None or workflow.now() - at < _PROGRESS_EVERY or self._done - done < step:
            return
        self._told = (workflow.now(), self._done)
        try:
            handle = workflow.get_external_workflow_handle(parent.workflow_id)
            await handle.signal("progress", self.progress())
        except FailureError:
            workflow.logger.warning("the batch took no progress of its model run")

    def _show(self, *, ended: bool = False) -> None:
        done = f"{self._done} of {self._run.slices} slices done"
        if ended:
            return workflow.set_current_details(f"**ended**, {done}")
        state = "paused" if self._paused else "stopping" if self._ending else "running"
        workflow.set_current_details(f"**{state}**, {done}, {len(self._outstanding)} outstanding")

    def _given_up(self, error: ActivityError) -> ApplicationError:
        return ApplicationError(cause_of(error), type=Failure.MODEL_RUN_FAILED, non_retryable=True)


def _ran_out_of_time(error: ActivityError) -> bool:
    """Retries have no end but schedule_to_close, so a final timeout is always the deadline."""
    return error.retry_state == RetryState.TIMEOUT or isinstance(error.cause, TemporalTimeout)
