"""The slices of one model: some at a time, until done, stopped or out of time."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, RetryState
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


class Slices:
    """Knows slice numbers only. What is told is only noted: `work` alone schedules, cancels and waits.

    What differs with the workflow that holds them are the methods at the end.
    """

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
        self._has_ended = False

    def stop(self) -> None:
        """Cancel what is outstanding and end. Repeats are harmless."""
        self._stopping = True

    def pause(self) -> None:
        """Give the slices back until `resume`; the window goes on running."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    @property
    def progress(self) -> ModelProgress:
        run = self._run
        return ModelProgress(model=run.model, lines=run.lines, slices=run.slices, slices_done=self._done)

    async def work(self) -> ModelRunResult:
        """Raises ApplicationError where a slice failed for good."""
        while not self._ending and self._has_more():
            if self._paused:
                await self._pause()
            elif (renew := self._renewal()) is not None:
                await renew()
            else:
                self._fill()
                await self._tell()
                await workflow.wait_condition(self._can_go_on)
        await self._stop()
        self._has_ended = True
        self._show()
        if self._failure is not None:
            raise self._given_up(self._failure)
        finished = self._done == self._run.slices
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
        return self._schedulable and (self._has_room() or self._renewal() is not None)

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
        self._show()

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

    def _given_up(self, error: ActivityError) -> ApplicationError:
        return ApplicationError(cause_of(error), type=Failure.MODEL_RUN_FAILED, non_retryable=True)

    # What the workflow that holds them makes of it

    def _renewal(self) -> Callable[[], Awaitable[None]] | None:
        """What goes on with a new history, where this one is long; None: it fits.

        Asked while something is left to schedule: the rest of a run always fits.
        """
        return None

    async def _tell(self) -> None:
        """After each change of what is scheduled."""

    def _show(self) -> None:
        """After each change."""


def _ran_out_of_time(error: ActivityError) -> bool:
    """Retries have no end but schedule_to_close, so a final timeout is always the deadline."""
    return error.retry_state == RetryState.TIMEOUT or isinstance(error.cause, TemporalTimeout)
