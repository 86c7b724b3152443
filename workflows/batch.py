"""A batch: ingest, one model run per model, finalize; the window, cancel and pause."""

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.batch import BatchOrder, BatchResult, BatchState, ModelProgress, WaitingReason
    from batchwright.contracts.errors import LineCode
    from batchwright.contracts.execution import ModelRunResult
    from batchwright.contracts.finalization import FinalizationActivities, FinalizeRequest, FinalizeResult
    from batchwright.contracts.ingestion import IngestionActivities, IngestResult, ModelShare
    from batchwright.contracts.lifecycle import EndRequest, LifecycleActivities
    from batchwright.contracts.openai import BatchStatus, ValidationError
    from workflows.children import ModelRuns, Wanted
    from workflows.details import markdown, show_start, show_status
    from workflows.failures import cause_of
    from workflows.options import CANCEL_STEP, ending, finalization, ingestion
    from workflows.steps import finish_unless

_UNSETTLED = {
    BatchStatus.EXPIRED: LineCode.BATCH_EXPIRED,
    BatchStatus.CANCELLED: LineCode.BATCH_CANCELLED,
}


@workflow.defn
class BatchWorkflow:
    """Handlers only note what was asked for; the run acts on it. The row's guarded SQL settles every race."""

    @workflow.init
    def __init__(self, order: BatchOrder) -> None:
        self._order = order
        self._status = BatchStatus.VALIDATING
        self._ending: BatchStatus | None = None  # why the batch ends early: the first reason decides
        self._errors: list[ValidationError] = []
        self._cancel_requested = False
        self._paused = False
        self._progress: dict[str, ModelProgress] = {}
        self._waiting: dict[str, WaitingReason] = {}
        self._all_finished = True
        self._runs = ModelRuns(order, wanted=self._wanted, moved=self._note_progress, note=self._note_model)

    @workflow.signal
    def cancel(self) -> None:
        """Ends the batch as cancelled unless something else ended it first. Repeats are harmless."""
        self._cancel_requested = True
        self._end_as(BatchStatus.CANCELLED)

    @workflow.signal
    def pause(self) -> None:
        """Dispatch stops until `resume`; the window goes on running."""
        self._paused = True
        self._show()

    @workflow.signal
    def resume(self) -> None:
        self._paused = False
        self._show()

    @workflow.signal
    def waiting(self, waiting: WaitingReason) -> None:
        """From a worker: why a model's slices wait; an empty reason says that they no longer do."""
        told = self._waiting.get(waiting.model)
        if waiting.reason:
            self._waiting[waiting.model] = waiting
        elif told is not None and told.stays == waiting.stays:
            del self._waiting[waiting.model]
        self._show()

    @workflow.signal
    def progress(self, progress: ModelProgress) -> None:
        """From a model run, now and then."""
        self._note_progress(progress)

    @workflow.query
    def state(self) -> BatchState:
        return BatchState(
            status=self._status,
            paused=self._paused,
            cancel_requested=self._cancel_requested,
            models=list(self._progress.values()),
            waiting=list(self._waiting.values()),
        )

    @workflow.run
    async def run(self, order: BatchOrder) -> BatchResult:
        """Temporal's own cancellation, as of the Web UI's button, is taken for the signal."""
        work = asyncio.create_task(self._process())
        while True:
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                if work.done():
                    raise
                self.cancel()

    async def _process(self) -> BatchResult:
        show_start(self._order)
        self._show()
        window = asyncio.create_task(self._watch_window())
        ingested = await self._ingest()
        if ingested is None:
            result = await self._end_without_files(total=0)
        elif ingested.failed:
            result = BatchResult(status=BatchStatus.FAILED, total=ingested.total)
        else:
            if ingested.closed:
                self._end_as(BatchStatus.EXPIRED)
            await self._run_models(ingested)
            window.cancel()
            result = await self._finalize(ingested)
        self._enter(result.status)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return result

    async def _watch_window(self) -> None:
        left = self._order.expires_at - workflow.now()
        if left.total_seconds() > 0:
            await workflow.sleep(left, summary="completion window")
        self._end_as(BatchStatus.EXPIRED)

    # Ingestion

    async def _ingest(self) -> IngestResult | None:
        """What ingestion committed, also after the deadline; None when cancelled or failed meanwhile."""
        step = workflow.start_activity_method(
            IngestionActivities.ingest, self._order, **ingestion(self._order, workflow.now())
        )
        try:
            return await finish_unless(step, lambda: self._ending == BatchStatus.CANCELLED, CANCEL_STEP)
        except ActivityError as error:
            self._ending = BatchStatus.FAILED
            self._note_error(f"The input could not be prepared: {cause_of(error)}")
            return None

    async def _run_models(self, ingested: IngestResult) -> None:
        """All models together; none when the batch ends already."""
        if self._ending is not None or not ingested.models:
            return
        self._progress = {share.model: _progress(share) for share in ingested.models}
        self._enter(BatchStatus.IN_PROGRESS, [share.model for share in ingested.models])
        await self._runs.run_all(ingested)

    def _wanted(self) -> Wanted:
        if self._ending is not None:
            return Wanted.STOPPED
        return Wanted.PAUSED if self._paused else Wanted.RUNNING

    def _note_progress(self, progress: ModelProgress) -> None:
        """What moves does not wait, whichever worker said so and is gone."""
        before = self._progress.get(progress.model)
        if before is not None and progress.slices_done > before.slices_done:
            told = self._waiting.get(progress.model)
            if told is not None and not told.stays:
                del self._waiting[progress.model]
        self._progress[progress.model] = progress
        self._show()

    def _note_model(self, share: ModelShare, result: ModelRunResult | None, error: str) -> None:
        self._waiting.pop(share.model, None)
        if result is None:
            self._end_as(BatchStatus.FAILED, f"Model {share.model!r}: {error}")
        elif result.finished:
            self._progress[share.model] = _progress(share, slices_done=share.slices)
        self._all_finished = self._all_finished and result is not None and result.finished
        self._show()

    # Finalization

    async def _finalize(self, ingested: IngestResult) -> BatchResult:
        """The files and the end. A cancel that comes before the row is completed still counts."""
        status = self._ending or (BatchStatus.COMPLETED if self._all_finished else BatchStatus.EXPIRED)
        if status == BatchStatus.COMPLETED:
            self._enter(BatchStatus.FINALIZING)
        try:
            written = await self._write_files(ingested, status)
        except ActivityError as error:
            self._ending = BatchStatus.FAILED
            self._note_error(f"The results could not be written: {cause_of(error)}")
            return await self._end_without_files(ingested.total, keep_results=True)
        return BatchResult(
            status=written.status,
            total=ingested.total,
            completed=written.completed,
            failed=written.failed,
            usage=written.usage,
        )

    async def _write_files(self, ingested: IngestResult, status: BatchStatus) -> FinalizeResult:
        step = workflow.start_activity_method(
            FinalizationActivities.finalize,
            FinalizeRequest(
                order=self._order,
                prefix=ingested.prefix,
                models=ingested.models,
                total=ingested.total,
                status=status,
                unsettled=_UNSETTLED.get(status, LineCode.BATCH_FAILED),
                errors=self._errors,
            ),
            **finalization(self._order, status),
        )
        completing = status == BatchStatus.COMPLETED
        written = await finish_unless(
            step, lambda: completing and self._ending == BatchStatus.CANCELLED, CANCEL_STEP
        )
        return written or await self._write_files(ingested, BatchStatus.CANCELLED)

    async def _end_without_files(self, total: int, *, keep_results: bool = False) -> BatchResult:
        status = self._ending or BatchStatus.FAILED
        row = await workflow.execute_activity_method(
            LifecycleActivities.end,
            EndRequest(order=self._order, status=status, errors=self._errors, keep_results=keep_results),
            **ending(self._order, status),
        )
        return BatchResult(status=row, total=total)

    # Telling

    def _end_as(self, status: BatchStatus, error: str | None = None) -> None:
        if self._ending is None and not self._status.is_terminal:
            self._ending = status
            if error is not None:
                self._note_error(error)
        self._show()

    def _note_error(self, message: str) -> None:
        self._errors = [*self._errors, ValidationError(code="system_error", message=message)]

    def _enter(self, status: BatchStatus, models: Sequence[str] = ()) -> None:
        self._status = status
        show_status(status, models)
        self._show()

    def _show(self) -> None:
        workflow.set_current_details(markdown(self._order, self.state()))


def _progress(share: ModelShare, slices_done: int = 0) -> ModelProgress:
    return ModelProgress(model=share.model, lines=share.lines, slices=share.slices, slices_done=slices_done)
