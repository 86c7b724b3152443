"""The model runs of one batch: begun together, told what is wanted of them, awaited.

Of a batch with few slices they are no workflows of their own: these would cost more than the slices.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol

from temporalio import workflow
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    WorkflowAlreadyStartedError,
)
from temporalio.workflow import ChildWorkflowHandle

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.batch import BatchOrder, ModelProgress
    from batchwright.contracts.execution import ModelRun, ModelRunResult
    from batchwright.contracts.ingestion import IngestResult, ModelShare
    from batchwright.contracts.names import CONTROL_QUEUE, model_run_id
    from workflows.failures import cause_of
    from workflows.model_run import ModelRunWorkflow
    from workflows.slices import Slices


class Wanted(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


_SIGNALS = {
    Wanted.RUNNING: ModelRunWorkflow.resume,
    Wanted.PAUSED: ModelRunWorkflow.pause,
    Wanted.STOPPED: ModelRunWorkflow.stop,
}


class _Run(Protocol):
    async def tell(self, wanted: Wanted) -> None: ...


class _Child(_Run):
    """A workflow of its own."""

    def __init__(self, handle: ChildWorkflowHandle[ModelRunWorkflow, ModelRunResult]) -> None:
        self._handle = handle

    async def tell(self, wanted: Wanted) -> None:
        try:
            await self._handle.signal(_SIGNALS[wanted])
        except FailureError:
            workflow.logger.info("a model run ended before it was told", extra={"wanted": wanted.value})


class _Within(Slices, _Run):
    """Slices of the batch's own workflow; `moved` hears of their progress."""

    def __init__(self, run: ModelRun, moved: Callable[[ModelProgress], None]) -> None:
        super().__init__(run)
        self._moved = moved

    async def tell(self, wanted: Wanted) -> None:
        match wanted:
            case Wanted.RUNNING:
                self.resume()
            case Wanted.PAUSED:
                self.pause()
            case Wanted.STOPPED:
                self.stop()

    def _show(self) -> None:
        self._moved(self.progress)


class ModelRuns:
    """Compares what is wanted with what each run was last told, so that no order is lost while runs start.

    `wanted` is asked after every event; `moved` hears of the progress of runs that are no workflows, and
    `note` each run's result, or None and what went wrong.
    """

    def __init__(
        self,
        order: BatchOrder,
        *,
        wanted: Callable[[], Wanted],
        moved: Callable[[ModelProgress], None],
        note: Callable[[ModelShare, ModelRunResult | None, str], None],
    ) -> None:
        self._order = order
        self._wanted = wanted
        self._moved = moved
        self._note = note
        self._open: dict[str, _Run] = {}
        self._told: dict[str, Wanted] = {}

    async def run_all(self, ingested: IngestResult) -> None:
        slices = sum(share.slices for share in ingested.models)
        begin = self._work_within if slices <= self._order.policy.inline_slices else self._work_in_child
        runs = [
            asyncio.create_task(self._run(share, begin(share, ingested.prefix))) for share in ingested.models
        ]
        everything = asyncio.gather(*runs)
        while not everything.done():
            await workflow.wait_condition(lambda: everything.done() or bool(self._untold()))
            await asyncio.gather(*(self._tell(model, self._open[model]) for model in self._untold()))
        everything.result()

    async def _run(self, share: ModelShare, working: Awaitable[ModelRunResult]) -> None:
        result, error = None, ""
        try:
            result = await working
        except (ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError) as failure:
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

    async def _work_within(self, share: ModelShare, prefix: str) -> ModelRunResult:
        """Raises ApplicationError."""
        first = self._first()
        slices = _Within(self._model_run(share, prefix, paused=first is Wanted.PAUSED), self._moved)
        self._began(share, slices, first)
        return await slices.work()

    async def _work_in_child(self, share: ModelShare, prefix: str) -> ModelRunResult:
        """Raises ChildWorkflowError, WorkflowAlreadyStartedError."""
        first = self._first()
        child = await workflow.start_child_workflow(
            ModelRunWorkflow.run,
            self._model_run(share, prefix, paused=first is Wanted.PAUSED),
            id=model_run_id(self._order.batch_id, share.safe),
            task_queue=CONTROL_QUEUE,
            static_summary=f"{share.lines} lines for {share.model}",
            static_details=f"{share.slices} slices of `{self._order.batch_id}`, planned under `{prefix}`",
        )
        self._began(share, _Child(child), first)
        return await child

    def _first(self) -> Wanted:
        return Wanted.PAUSED if self._wanted() is Wanted.PAUSED else Wanted.RUNNING

    def _began(self, share: ModelShare, run: _Run, told: Wanted) -> None:
        self._told[share.model] = told
        self._open[share.model] = run
        data = {"tenant": self._order.tenant, "model": share.model, "lines": share.lines}
        workflow.logger.info("model run began", extra={**data, "slices": share.slices})

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

    async def _tell(self, model: str, run: _Run) -> None:
        self._told[model] = wanted = self._wanted()
        await run.tell(wanted)
