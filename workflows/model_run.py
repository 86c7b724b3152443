"""One model's share of a batch as a workflow of its own, for as long as it takes."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.batch import ModelProgress
    from batchwright.contracts.execution import ModelRun, ModelRunResult
    from workflows.slices import Slices

# The parent is told of progress this often at most, and never more than about 20 times a run.
_PROGRESS_EVERY = timedelta(seconds=10)
_PROGRESS_STEPS = 20


@workflow.defn
class ModelRunWorkflow:
    """Handlers only pass on what is wanted."""

    @workflow.init
    def __init__(self, run: ModelRun) -> None:
        self._slices = _OwnHistory(run)

    @workflow.signal
    def stop(self) -> None:
        self._slices.stop()

    @workflow.signal
    def pause(self) -> None:
        self._slices.pause()

    @workflow.signal
    def resume(self) -> None:
        self._slices.resume()

    @workflow.query
    def progress(self) -> ModelProgress:
        return self._slices.progress

    @workflow.run
    async def run(self, run: ModelRun) -> ModelRunResult:
        return await self._slices.work()


class _OwnHistory(Slices):
    """Slices that continue as new where their history gets long, and tell a parent of their progress."""

    def __init__(self, run: ModelRun) -> None:
        super().__init__(run)
        self._told = (workflow.now(), self._done)

    def _renewal(self) -> Callable[[], Awaitable[None]] | None:
        if not self._schedulable:
            return None
        limit, info = self._run.policy.continue_as_new_events, workflow.info()
        is_long = info.is_continue_as_new_suggested() or 0 < limit <= info.get_current_history_length()
        return self._continue_as_new if is_long else None

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

    async def _tell(self) -> None:
        parent, (at, done) = workflow.info().parent, self._told
        step = max(1, self._run.slices // _PROGRESS_STEPS)
        if parent is None or workflow.now() - at < _PROGRESS_EVERY or self._done - done < step:
            return
        self._told = (workflow.now(), self._done)
        try:
            handle = workflow.get_external_workflow_handle(parent.workflow_id)
            await handle.signal("progress", self.progress)
        except FailureError:
            workflow.logger.warning("the batch took no progress of its model run")

    def _show(self) -> None:
        done = f"{self._done} of {self._run.slices} slices done"
        if self._has_ended:
            return workflow.set_current_details(f"**ended**, {done}")
        state = "paused" if self._paused else "stopping" if self._ending else "running"
        workflow.set_current_details(f"**{state}**, {done}, {len(self._outstanding)} outstanding")
