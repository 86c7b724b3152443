"""Start, pause, stop and await the model runs of one batch: child workflows that each run one model."""

import asyncio
import contextlib
from collections import Counter
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
    from batchwright.contracts.temporal_payloads.ingestion import IngestResult
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
    """The model runs (child workflows) of a batch, at least one for each model.

    This object starts, pauses, resumes and stops the model runs. If the history of a model run is long, a new
    run of the same model starts at once, and gets the slices that still have to be scheduled. A model may
    therefore have several runs at a time.

    The desired state (running, paused or stopped) is the same for all model runs, and is sent to them as a
    signal. If the desired state changes while a signal is being sent, another signal follows.

    Temporal ends a workflow with more than 51,200 events. Each pause or resume adds three to six events per
    model to the history of the batch's workflow. If this history is long, a pause may have to wait
    (`_pause_interval`). If the batch is resumed during the wait, the pause is never sent. A resume or a stop
    is always sent at once.

    Args:
        order: the message that started the batch.
        desired_state: returns the desired state. It is called after every event of the batch's workflow.
        on_end: function that is called when a model run ends, with its start argument and with its result or
            its failure.
    """

    def __init__(
        self,
        order: BatchOrder,
        *,
        desired_state: Callable[[], DesiredState],
        on_end: Callable[[ModelRun, ModelRunResult | FailureError], None],
    ) -> None:
        self._order = order
        self._desired_state = desired_state
        self._on_end = on_end
        self._runs: list[asyncio.Task[None]] = []
        self._begun, self._ended = Counter[str](), Counter[str]()  # number of runs, by model
        self._open: dict[str, _OpenRun] = {}  # by workflow id
        self._last_sent: dict[str, DesiredState] = {}
        self._last_pause_at: datetime | None = None

    async def run_all(self, ingested: IngestResult) -> None:
        """Run each model in child workflows. Return when all of them have ended."""
        most = _PROGRESS_REPORTS // max(len(ingested.models), 1)
        reports = max(1, min(_PROGRESS_REPORTS_OF_MODEL, most))
        prefix = ingested.ingest_prefix
        for share in ingested.models:
            self.begin(ModelRun.of(self._order, share, prefix, progress_reports=reports))
        while not self._all_ended():
            await workflow.wait_condition(lambda: self._all_ended() or bool(self._out_of_date()))
            await self._wait_to_pause()
            if out_of_date := self._out_of_date():
                if self._desired_state() is DesiredState.PAUSED:
                    self._last_pause_at = workflow.now()
                await asyncio.gather(*(self._send_state(id, self._open[id]) for id in out_of_date))
        for run in self._runs:
            run.result()

    def begin(self, run: ModelRun) -> None:
        """Start a model run (child workflow) for the slices in `run`, unless the batch has to stop."""
        self._begun[run.model] += 1
        numbered = run.model_copy(update={"number": self._begun[run.model]})
        self._runs.append(asyncio.create_task(self._run(numbered)))

    def has_ended(self, model: str) -> bool:
        """Return True if all runs of the model have ended."""
        return self._ended[model] == self._begun[model]

    def _all_ended(self) -> bool:
        return all(run.done() for run in self._runs)

    async def _run(self, run: ModelRun) -> None:
        data = {"tenant": self._order.tenant, "model": run.model, "lines": run.lines}
        outcome: ModelRunResult | FailureError = ModelRunResult(finished=False)
        try:
            if self._desired_state() is not DesiredState.STOPPED:
                outcome = await self._run_child(run)
        except (ChildWorkflowError, WorkflowAlreadyStartedError) as failure:
            outcome = failure
            workflow.logger.error("model run error", extra={"model": run.model, "error": cause_of(failure)})
        self._open.pop(_id_of(run), None)
        if isinstance(outcome, FailureError):
            sentence = sentence_for_tenant(outcome)
            workflow.logger.warning("model run failed", extra={**data, "error": sentence})
        else:
            counts = {"completed": outcome.completed, "failed": outcome.failed, "finished": outcome.finished}
            workflow.logger.info("model run ended", extra={**data, **counts})
        self._ended[run.model] += 1
        self._on_end(run, outcome)

    async def _run_child(self, run: ModelRun) -> ModelRunResult:
        """Start a child workflow for the slices in `run`, wait for its end, and return its result.

        Raises:
            ChildWorkflowError: the run failed, or was cancelled or terminated.
            WorkflowAlreadyStartedError: a workflow with the run's id exists already.
        """
        paused, id = self._desired_state() is DesiredState.PAUSED, _id_of(run)
        child = await workflow.start_child_workflow(
            ModelRunWorkflow.run,
            run.model_copy(update={"paused": paused}),
            id=id,
            task_queue=CONTROL_QUEUE,
            static_summary=f"{run.lines} lines for {run.model}",
            static_details=(
                f"{run.slices_left} slices of `{run.batch_id}`, planned under `{run.ingest_prefix}`"
            ),
        )
        self._last_sent[id] = DesiredState.PAUSED if paused else DesiredState.RUNNING
        self._open[id] = child
        data = {"tenant": self._order.tenant, "model": run.model, "lines": run.lines}
        workflow.logger.info("model run started", extra={**data, "slices": run.slices_left})
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

        The batch's policy limits the number of events in the history of the batch's workflow
        (`max_change_events`). While the history has less than a quarter of this number, the result is 0.
        After that, the pauses that the limit still allows are spread evenly over the time until the batch's
        deadline.
        """
        used, most = workflow.info().get_current_history_length(), self._order.policy.max_change_events
        if used < most / 4:
            return timedelta(0)
        window = max(self._order.deadline - workflow.now(), timedelta(0))
        return window * (len(self._open) * _EVENTS_OF_PAUSE) / max(most - used, 1)

    def _out_of_date(self) -> list[str]:
        state = self._desired_state()
        return [id for id in self._open if self._last_sent[id] != state]

    async def _send_state(self, id: str, run: _OpenRun) -> None:
        self._last_sent[id] = state = self._desired_state()
        try:
            await run.signal(_SIGNALS[state])
        except FailureError:
            workflow.logger.info("model run ended before its signal", extra={"state": state.value})


def _id_of(run: ModelRun) -> str:
    return model_run_id(run.batch_id, run.safe_model, run.number)
