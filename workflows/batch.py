"""The workflow of a batch: read the input, run each model, and write the files.

A batch ends early, for example, if it is cancelled (`cancel`) or if its completion window ends
(`_watch_deadline`). Each such event records an end reason (`batch_end_reason.py`). The end reason stops the
model runs (child workflows, `model_children.py`) and sets the status of the batch (`batch_files.py`).
"""

import asyncio
import contextlib
from collections.abc import Sequence

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.errors import SYSTEM_ERROR
    from batchwright.contracts.temporal_payloads.batch import (
        SCHEDULED,
        BatchForecast,
        BatchOrder,
        BatchResult,
        BatchState,
        ModelProgress,
        WaitingReason,
    )
    from batchwright.contracts.temporal_payloads.execution import ModelRun, ModelRunResult
    from batchwright.contracts.temporal_payloads.finalization import (
        LifecycleActivities,
    )
    from batchwright.contracts.temporal_payloads.ingestion import (
        IngestionActivities,
        IngestResult,
    )
    from batchwright.contracts.temporal_payloads.output_copies import WORKFLOW as OUTPUT_COPY_WORKFLOW
    from batchwright.contracts.terms import BatchStatus
    from batchwright.rules.deadline import Deadline
    from batchwright.rules.pause_limit import is_overtaken
    from batchwright.workflows.batch_end_reason import EndReason
    from batchwright.workflows.batch_files import BatchFiles
    from batchwright.workflows.failures import abandoned, code_for_tenant, sentence_for_tenant
    from batchwright.workflows.model_children import DesiredState, ModelRuns
    from batchwright.workflows.options import (
        ingestion_options,
        insert_row_options,
        output_copy_workflow_options,
    )
    from batchwright.workflows.steps import run_until
    from batchwright.workflows.web_ui_summary import (
        details_markdown,
        ensure_search_attributes,
        set_status_attributes,
    )


@workflow.defn
class BatchWorkflow:
    """The workflow that runs one batch, from reading its input to writing its files.

    Signal handlers only record what is requested, and `run` acts on it. If a cancel and the completion happen
    at the same time, the first to update the batch's row in the database takes effect.
    """

    @workflow.init
    def __init__(self, order: BatchOrder) -> None:
        self._order = order
        self._status = BatchStatus.VALIDATING
        self._end_reason = EndReason()
        self._cancel_requested = False
        self._paused = False
        self._pause_change, self._paused_at = 0, workflow.now()  # number and time of the last pause or resume
        self._progress: dict[str, ModelProgress] = {}
        self._slices_done: dict[tuple[str, int], int] = {}  # by model and number of the model run
        self._waiting: dict[tuple[str, bool], WaitingReason] = {}  # by (model, True if fleet-wide)
        self._forecast: BatchForecast | None = None
        self._all_finished = True
        self._files = BatchFiles(order, self._end_reason, self._enter)
        self._runs = ModelRuns(order, desired_state=self._desired_state, on_end=self._on_run_end)

    @workflow.signal
    def cancel(self) -> None:
        """End the batch with the status `cancelled`, unless it is already ending for another reason.

        A second call has no effect.
        """
        self._cancel_requested = True
        self._end_early(BatchStatus.CANCELLED)

    @workflow.signal
    def pause(self, change: int = 0) -> None:
        """Stop sending requests until `resume`. The deadline stays the same.

        Args:
            change: number of this signal. The API counts the pauses and resumes of the batch, because signals
                may arrive in the wrong order. If a signal with a higher number has arrived in the last
                minute, this signal has no effect. A signal from another source, such as Temporal's Web UI,
                has the number 0 and always has an effect.
        """
        self._set_paused(True, change)

    @workflow.signal
    def resume(self, change: int = 0) -> None:
        """Continue to send requests after a pause.

        Args:
            change: number of this signal, as described at `pause`.
        """
        self._set_paused(False, change)

    @workflow.signal
    def abandon(self) -> None:
        """End the batch without output files. An operator sends this signal if the files cannot be written.

        The stored results are kept. The signal has an effect only in two cases: the files are being written,
        or the batch has its final status but its files are still missing.
        """
        self._files.abandon()

    @workflow.signal
    def waiting(self, waiting: WaitingReason) -> None:
        """Record why a model's lines wait, as a worker reports it.

        An empty reason clears the earlier reason. A model can have two reasons at the same time: one for the
        whole fleet, and one for a single slice. A reason for the fleet never replaces or clears a reason for
        a slice, and vice versa.
        """
        self._waiting.pop((waiting.model, waiting.fleet_wide), None)
        if waiting.reason:
            self._waiting[waiting.model, waiting.fleet_wide] = waiting
        self._update_details()

    @workflow.signal
    def forecast(self, forecast: BatchForecast) -> None:
        self._forecast = forecast
        self._update_details()

    @workflow.signal
    def progress(self, progress: ModelProgress) -> None:
        """Record the progress of a model run (child workflow). The model run sends this signal."""
        self._on_progress(progress)

    @workflow.signal
    def hand_over(self, rest: ModelRun) -> None:
        """Start another model run (child workflow) for the slices in `rest`.

        A model run sends this signal when the history of its workflow is long. The model run keeps the slices
        that are already scheduled as activities. `rest` contains the slices that still have to be scheduled.
        """
        self._runs.begin(rest)

    @workflow.query
    def state(self) -> BatchState:
        return BatchState(
            status=self._status,
            paused=self._paused,
            cancel_requested=self._cancel_requested,
            files_pending=self._files.are_pending,
            models=list(self._progress.values()),
            waiting=list(self._waiting.values()),
            forecast=self._forecast if self._status is BatchStatus.IN_PROGRESS else None,
            failed_by_code=self._files.failed_by_code,
        )

    @workflow.run
    async def run(self, order: BatchOrder) -> BatchResult:
        """Process the batch and return its final status and counts.

        A cancel of the workflow in Temporal, for example in the Web UI, acts like the signal `cancel`.
        """
        work = asyncio.create_task(self._process())
        while True:
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                if work.done():
                    raise
                self.cancel()

    async def _process(self) -> BatchResult:
        ensure_search_attributes(self._order)
        self._update_details()
        deadline = asyncio.create_task(self._watch_deadline())
        starts = await self._wait_for_start()
        if starts and (rolling := self._order.policy.rolling) is not None:
            await workflow.sleep(rolling.open_seconds, summary="calls become lines of this batch")
        ingested = await self._ingest() if starts else None
        if ingested is None:
            result = await self._files.end_without_files(total=0)
        elif ingested.failed:
            status = self._status if self._files.are_pending else BatchStatus.FAILED
            result = BatchResult(status=status, total=ingested.total)
        else:
            if ingested.deadline_passed:
                self._end_early(BatchStatus.EXPIRED)
            await self._run_models(ingested)
            deadline.cancel()
            if not self._all_finished:
                self._end_early(BatchStatus.EXPIRED)
            result = await self._files.finalize(ingested)
        self._files.are_pending = False
        self._enter(result.status)
        if self._order.output_location is not None:
            with contextlib.suppress(WorkflowAlreadyStartedError):  # by a run that an operator has reset
                await workflow.start_child_workflow(
                    OUTPUT_COPY_WORKFLOW, self._order, **output_copy_workflow_options(self._order)
                )
        await workflow.wait_condition(workflow.all_handlers_finished)
        return result

    async def _watch_deadline(self) -> None:
        remaining = Deadline.of(self._order.deadline).remaining(workflow.time())
        if remaining > 0:
            await workflow.sleep(remaining, summary="completion window")
        self._end_early(BatchStatus.EXPIRED)

    async def _wait_for_start(self) -> bool:
        """Wait until the batch's `start_at`. Return False if the batch is cancelled before that time.

        Temporal's own start delay is not used, because any signal would end the delay.

        If the API could not insert the batch's row in the database, an activity inserts the row during the
        wait, so that clients find the batch. The batch starts on time even if this activity has not ended.
        Ingestion (the activity that reads the input) then inserts the row.
        """
        start = self._order.start_at
        if start is None or (remaining := start.timestamp() - workflow.time()) <= 0:
            return True
        self.waiting(WaitingReason(model="", reason=SCHEDULED, since=self._order.created_at))
        workflow.start_activity_method(
            LifecycleActivities.insert_row, self._order, **insert_row_options(self._order)
        )
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._end_reason.status is not None,
                timeout=remaining,
                timeout_summary="scheduled start",
            )
        self.waiting(WaitingReason(model=""))
        return self._end_reason.status is None

    # Ingestion

    async def _ingest(self) -> IngestResult | None:
        """Run the ingestion activity, even after the deadline, and return its result.

        Ingestion validates the input and plans its lines. If the input is invalid, the result says so. Return
        None if the activity failed, the batch was cancelled, or an operator has given up the batch's files
        (signal `abandon`).
        """
        step = workflow.start_activity_method(
            IngestionActivities.ingest, self._order, **ingestion_options(self._order, workflow.now())
        )
        await workflow.wait_condition(lambda: step.done() or self._end_reason.status is not None)
        if self._end_reason.status == BatchStatus.EXPIRED:
            await self._files.end_in_time(BatchStatus.EXPIRED, step)
        try:
            ingested = await run_until(
                step,
                lambda: self._files.are_abandoned or self._end_reason.status == BatchStatus.CANCELLED,
            )
        except ActivityError as error:
            self._files.report_failure("The input could not be prepared", error)
            return None
        if ingested is None and self._files.are_abandoned:
            self._end_reason.add_error(abandoned(results_kept=False))
        return ingested

    async def _run_models(self, ingested: IngestResult) -> None:
        """Start a child workflow (model run) for each model, and wait until all model runs have ended.

        If the batch is already ending, do nothing. If the deadline passes during the wait, the model runs are
        stopped. The batch then expires, unless all of its lines have results.
        """
        if self._end_reason.status is not None or not ingested.models:
            return
        self._progress = {
            share.model: ModelProgress(model=share.model, lines=share.lines, slices=share.slices)
            for share in ingested.models
        }
        self._enter(BatchStatus.IN_PROGRESS, [share.model for share in ingested.models])
        await self._runs.run_all(ingested)
        if self._all_finished:
            self._end_reason.withdraw_deadline()

    def _set_paused(self, paused: bool, change: int) -> None:
        now = workflow.now()
        if is_overtaken(change, self._pause_change, now - self._paused_at):
            return
        self._paused, self._paused_at = paused, now
        self._pause_change = change or self._pause_change
        self._update_details()

    def _desired_state(self) -> DesiredState:
        if self._end_reason.status is not None:
            return DesiredState.STOPPED
        return DesiredState.PAUSED if self._paused else DesiredState.RUNNING

    def _on_progress(self, progress: ModelProgress) -> None:
        """Record the progress of a model run.

        If more slices are done than before, also clear the waiting reason that a slice of the model has
        reported. If the worker that reported the reason has crashed, the worker cannot clear the reason.
        """
        run = (progress.model, progress.run)
        if progress.slices_done > self._slices_done.get(run, 0):
            self._waiting.pop((progress.model, False), None)
        self._slices_done[run] = progress.slices_done
        done = sum(done for (model, _), done in self._slices_done.items() if model == progress.model)
        self._progress[progress.model] = progress.model_copy(update={"run": 1, "slices_done": done})
        self._update_details()

    def _on_run_end(self, run: ModelRun, outcome: ModelRunResult | FailureError) -> None:
        if self._runs.has_ended(run.model):
            for fleet_wide in (True, False):
                self._waiting.pop((run.model, fleet_wide), None)
        if isinstance(outcome, FailureError):
            sentence = f"Model {run.model!r}: {sentence_for_tenant(outcome)}"
            self._end_early(BatchStatus.FAILED, sentence, code_for_tenant(outcome))
            self._all_finished = False
        else:
            if outcome.over_cap:
                self._end_reason.record_over_cap()
            self._on_progress(run.progress(outcome.slices_done))
            self._all_finished = self._all_finished and outcome.finished
        self._update_details()

    # Reporting

    def _end_early(self, status: BatchStatus, error: str | None = None, code: str = SYSTEM_ERROR) -> None:
        if not self._status.is_terminal:
            self._end_reason.record(status, error, code)
        self._update_details()

    def _enter(self, status: BatchStatus, models: Sequence[str] = ()) -> None:
        self._status = status
        set_status_attributes(status, models)
        self._update_details()

    def _update_details(self) -> None:
        workflow.set_current_details(details_markdown(self._order, self.state()))
