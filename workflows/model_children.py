"""The model runs of one batch, which are child workflows: start, pause, stop and await them."""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum

from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError, FailureError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.temporal_names import CONTROL_QUEUE, model_run_id
    from batchwright.contracts.temporal_payloads.batch import BatchOrder
    from batchwright.contracts.temporal_payloads.execution import ModelRun, ModelRunResult
    from batchwright.contracts.temporal_payloads.ingestion import IngestResult, ModelShare
    from batchwright.workflows.failures import cause_of, sentence_for_tenant
    from batchwright.workflows.model_run import ModelRunWorkflow


class DesiredState(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


_SIGNALS = {
    DesiredState.RUNNING: ModelRunWorkflow.resume,
    DesiredState.PAUSED: ModelRunWorkflow.pause,
    DesiredState.STOPPED: ModelRunWorkflow.stop,
}

_OpenRun = ChildWorkflowHandle[ModelRunWorkflow, ModelRunResult]

# Reports of progress to a batch, at most. Temporal accepts 10,000 signals for a workflow, and then no cancel.
_PROGRESS_REPORTS = 2_000
_PROGRESS_REPORTS_OF_MODEL = 20
_EVENTS_OF_PAUSE = 12  # most events that a pause of one model and its resume add to the history of the batch


class ModelRuns:
    """Starts one model run (child workflow) for each model of a batch, and pauses, resumes or stops them.

    The desired state (run, pause or stop) is the same for all model runs. If it changes while an earlier
    change is being sent, the new change is sent afterwards, so no change is lost.

    Temporal ends a workflow with more than 51,200 events, and each pause or resume adds three to six events
    for each model. So if the history is long, a pause may have to wait (`_pause_interval`). If the batch is
    resumed before that, the pause is never sent. A resume or a stop is always sent at once.

    Args:
        order: the batch.
        desired_state: returns the desired state. It is called after every event of the batch's workflow.
        on_end: function that is called with the run's result, or its failure, when a model run ends.
    """

    def __init__(
        self,
        order: BatchOrder,
        *,
        desired_state: Callable[[], DesiredState],
        on_end: Callable[[ModelShare, ModelRunResult | FailureError], None],
    ) -> None:
        self._order = order
        self._desired_state = desired_state
        self._on_end = on_end
        self._open: dict[str, _OpenRun] = {}
        self._last_sent: dict[str, DesiredState] = {}
        self._last_pause_at: datetime | None = None
        self._progress_reports = _PROGRESS_REPORTS_OF_MODEL  # of each model run

    async def run_all(self, ingested: IngestResult) -> None:
        """Run each model in its own child workflow. Return when all of them have ended."""
        most = _PROGRESS_REPORTS // max(len(ingested.models), 1)
        self._progress_reports = max(1, min(_PROGRESS_REPORTS_OF_MODEL, most))
        runs = [asyncio.create_task(self._run(share, ingested.ingest_prefix)) for share in ingested.models]
        all_runs = asyncio.gather(*runs)
        while not all_runs.done():
            await workflow.wait_condition(lambda: all_runs.done() or bool(self._out_of_date()))
            await self._wait_to_pause()
            if out_of_date := self._out_of_date():
                if self._desired_state() is DesiredState.PAUSED:
                    self._last_pause_at = workflow.now()
                await asyncio.gather(*(self._send_state(model, self._open[model]) for model in out_of_date))
        all_runs.result()

    async def _run(self, share: ModelShare, prefix: str) -> None:
        data = {"tenant": self._order.tenant, "model": share.model, "lines": share.lines}
        try:
            outcome = await self._run_child(share, prefix)
        except (ChildWorkflowError, WorkflowAlreadyStartedError) as failure:
            outcome = failure
            workflow.logger.error("model run error", extra={"model": share.model, "error": cause_of(failure)})
        self._open.pop(share.model, None)
        if isinstance(outcome, FailureError):
            sentence = sentence_for_tenant(outcome)
            workflow.logger.warning("model run failed", extra={**data, "error": sentence})
        else:
            counts = {"completed": outcome.completed, "failed": outcome.failed, "finished": outcome.finished}
            workflow.logger.info("model run ended", extra={**data, **counts})
        self._on_end(share, outcome)

    async def _run_child(self, share: ModelShare, prefix: str) -> ModelRunResult:
        """Run one model in a child workflow, and return its result.

        `prefix` is the key prefix of the objects that ingestion has written for the batch.

        Raises:
            ChildWorkflowError: the run failed, or was cancelled or terminated.
            WorkflowAlreadyStartedError: a workflow with the run's id exists already.
        """
        paused = self._desired_state() is DesiredState.PAUSED
        child = await workflow.start_child_workflow(
            ModelRunWorkflow.run,
            ModelRun.of(self._order, share, prefix, paused=paused, progress_reports=self._progress_reports),
            id=model_run_id(self._order.batch_id, share.safe_model),
            task_queue=CONTROL_QUEUE,
            static_summary=f"{share.lines} lines for {share.model}",
            static_details=f"{share.slices} slices of `{self._order.batch_id}`, planned under `{prefix}`",
        )
        self._last_sent[share.model] = DesiredState.PAUSED if paused else DesiredState.RUNNING
        self._open[share.model] = child
        data = {"tenant": self._order.tenant, "model": share.model, "lines": share.lines}
        workflow.logger.info("model run started", extra={**data, "slices": share.slices})
        return await child

    async def _wait_to_pause(self) -> None:
        """Wait until the next pause may be sent, or until the batch no longer has to pause."""
        if self._last_pause_at is None or self._desired_state() is not DesiredState.PAUSED:
            return
        remaining = self._last_pause_at + self._pause_interval() - workflow.now()
        if remaining <= timedelta(0):
            return
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._desired_state() is not DesiredState.PAUSED or not self._open,
                timeout=remaining,
                timeout_summary="time between two pauses",
            )

    def _pause_interval(self) -> timedelta:
        """Return the least time between two pauses.

        It is 0 until a quarter of the allowed events of the history are used. After that, the pauses that
        still fit into the history are spread evenly over the rest of the completion window.
        """
        used, most = workflow.info().get_current_history_length(), self._order.policy.max_change_events
        if used < most / 4:
            return timedelta(0)
        window = max(self._order.deadline - workflow.now(), timedelta(0))
        return window * (len(self._open) * _EVENTS_OF_PAUSE) / max(most - used, 1)

    def _out_of_date(self) -> list[str]:
        state = self._desired_state()
        return [model for model in self._open if self._last_sent[model] != state]

    async def _send_state(self, model: str, run: _OpenRun) -> None:
        self._last_sent[model] = state = self._desired_state()
        try:
            await run.signal(_SIGNALS[state])
        except FailureError:
            workflow.logger.info("model run ended before its signal", extra={"state": state.value})
