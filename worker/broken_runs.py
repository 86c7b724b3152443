"""What control workers show of live batches whose run was ended from outside: nothing works on those."""

from typing import Protocol

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from batchwright.telemetry.metrics import Metrics
from worker.outlook import Outlook

# A batch's workflow ends by itself as `completed`, however the batch does.
_BROKEN = (
    "WorkflowType = 'BatchWorkflow' AND ExecutionStatus IN ('Terminated', 'Failed', 'TimedOut', 'Canceled')"
)
_MOST = 1000  # of those that Temporal still remembers


class BatchRuns(Protocol):
    """Both raise RPCError where Temporal does not answer."""

    async def broken(self) -> frozenset[str]:
        """Batches of which some run was ended from outside."""
        ...

    async def is_open(self, batch_id: str) -> bool:
        """Whether the latest run goes on."""
        ...


class ServerRuns(BatchRuns):
    """The real ones."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def broken(self) -> frozenset[str]:
        found = self._client.list_workflows(_BROKEN, limit=_MOST)
        return frozenset([run.id async for run in found])

    async def is_open(self, batch_id: str) -> bool:
        try:
            run = await self._client.get_workflow_handle(batch_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return run.status in (WorkflowExecutionStatus.RUNNING, None)


class BrokenRuns:
    def __init__(self, runs: BatchRuns, outlook: Outlook, metrics: Metrics) -> None:
        """Looks at the batches that the outlook saw last."""
        self._runs, self._outlook, self._metrics = runs, outlook, metrics

    async def look(self) -> None:
        """Raises RPCError; what was shown stays."""
        live = self._outlook.batches
        suspected = sorted(await self._runs.broken() & live) if live else []
        self._metrics.without_run.set(sum([not await self._runs.is_open(each) for each in suspected]))
