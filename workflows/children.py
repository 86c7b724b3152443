"""The model runs of one batch: started together, told what is wanted of them, awaited."""

import asyncio
from collections.abc import Callable
from enum import Enum

from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError, FailureError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.batch import BatchOrder
    from batchwright.contracts.execution import ModelRun, ModelRunResult
    from batchwright.contracts.ingestion import IngestResult, ModelShare
    from batchwright.contracts.names import CONTROL_QUEUE, model_run_id
    from workflows.failures import cause_of
    from workflows.model_run import ModelRunWorkflow


class Wanted(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


_SIGNALS = {
    Wanted.RUNNING: ModelRunWorkflow.resume,
    Wanted.PAUSED: ModelRunWorkflow.pause,
    Wanted.STOPPED: ModelRunWorkflow.stop,
}


class ModelRuns:
    """Compares what is wanted with what each run was last told, so that no order is lost while runs start.

    `wanted` is asked after every event; `note` hears each run's result, or None and what went wrong.
    """

    def __init__(
        self,
        order: BatchOrder,
        *,
        wanted: Callable[[], Wanted],
        note: Callable[[ModelShare, ModelRunResult | None, str], None],
    ) -> None:
        self._order = order
        self._wanted = wanted
        self._note = note
        self._open: dict[str, ChildWorkflowHandle[ModelRunWorkflow, ModelRunResult]] = {}
        self._told: dict[str, Wanted] = {}

    async def run_all(self, ingested: IngestResult) -> None:
        runs = [asyncio.create_task(self._run(share, ingested.prefix)) for share in ingested.models]
        everything = asyncio.gather(*runs)
        while not everything.done():
            await workflow.wait_condition(lambda: everything.done() or bool(self._untold()))
            await asyncio.gather(*(self._tell(model, self._open[model]) for model in self._untold()))
        everything.result()

    async def _run(self, share: ModelShare, prefix: str) -> None:
        result, error = None, ""
        try:
            result = await (await self._start(share, prefix))
        except (ChildWorkflowError, WorkflowAlreadyStartedError) as failure:
            error = cause_of(failure)
        self._open.pop(share.model, None)
        self._log_end(share, result, error)
        self._note(share, result, error)

    def _log_end(self, share: ModelShare, result: ModelRunResult | None, error: str) -> None:
        data = {"tenant": self._order.tenant, "model": share.model, "lines": share.lines}
        if result is None:
            workflow.logger.warning("model run failed", extra={**data, "error": error})
        else:
            counts = {"completed": result.completed, "failed": result.failed, "finished": result.finished}
            workflow.logger.info("model run ended", extra={**data, **counts})

    async def _start(
        self, share: ModelShare, prefix: str
    ) -> ChildWorkflowHandle[ModelRunWorkflow, ModelRunResult]:
        first = Wanted.PAUSED if self._wanted() == Wanted.PAUSED else Wanted.RUNNING
        child = await workflow.start_child_workflow(
            ModelRunWorkflow.run,
            self._model_run(share, prefix, paused=first == Wanted.PAUSED),
            id=model_run_id(self._order.batch_id, share.safe),
            task_queue=CONTROL_QUEUE,
            static_summary=f"{share.lines} lines for {share.model}",
            static_details=f"{share.slices} slices of `{self._order.batch_id}`, planned under `{prefix}`",
        )
        self._told[share.model] = first
        self._open[share.model] = child
        data = {"tenant": self._order.tenant, "model": share.model, "lines": share.lines}
        workflow.logger.info("model run began", extra={**data, "slices": share.slices})
        return child

    def _model_run(self, share: ModelShare, prefix: str, *, paused: bool) -> ModelRun:
        order = self._order
        return ModelRun(
            batch_id=order.batch_id,
            tenant=order.tenant,
            weight=order.weight,
            priority=order.priority,
            endpoint=order.endpoint,
            prefix=prefix,
            model=share.model,
            safe=share.safe,
            lines=share.lines,
            slices=share.slices,
            closes_at=order.expires_at,
            policy=order.policy,
            paused=paused,
            queue=share.queue,
        )

    def _untold(self) -> list[str]:
        wanted = self._wanted()
        return [model for model in self._open if self._told[model] != wanted]

    async def _tell(self, model: str, child: ChildWorkflowHandle[ModelRunWorkflow, ModelRunResult]) -> None:
        self._told[model] = wanted = self._wanted()
        try:
            await child.signal(_SIGNALS[wanted])
        except FailureError:
            workflow.logger.info("a model run ended before it was told", extra={"wanted": wanted.value})
