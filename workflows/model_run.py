"""The model run: the workflow that runs the lines of one model of a batch.

If the history of this workflow is long, another model run continues with the slices that are not scheduled
yet.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.temporal_payloads.batch import ModelProgress
    from batchwright.contracts.temporal_payloads.execution import ModelRun, ModelRunResult
    from batchwright.workflows.slice_scheduler import SliceScheduler


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
