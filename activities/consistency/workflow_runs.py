"""Read the workflow runs of batches from Temporal, for consistency checks.

If a batch has several runs, only the latest run is used.
"""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import NamedTuple, Protocol

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts import search_attributes
from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchResult
from batchwright.contracts.temporal_payloads.ingestion import IngestionActivities, IngestResult
from batchwright.temporal.workflow_starts import start_batch

_BATCHES = "WorkflowType = 'BatchWorkflow'"
_INGEST = IngestionActivities.ingest.__name__


class BatchRun(NamedTuple):
    """The latest workflow run of a batch, as Temporal reports it.

    Attributes:
        id: the batch's id, which is also the workflow's id.
        ended: how the workflow run ended, such as `terminated`; empty while the run is open.
        result: the run's result; None if the run has not completed or its result was not read.
        status: the batch's status, which the run stores in a search attribute; empty if it is not stored.
    """

    id: str
    tenant: str
    started_at: datetime
    ended: str = ""
    ended_at: datetime | None = None
    result: BatchResult | None = None
    status: str = ""


class BatchRunSource(Protocol):
    """The interface to the workflow runs of batches in Temporal.

    All methods raise RPCError if Temporal is unavailable.
    """

    def all(self) -> AsyncIterator[BatchRun]:
        """Yield the runs of all batches. Their `result` is None, because it is not read."""
        ...

    async def find(self, batch_id: str) -> BatchRun | None: ...

    async def order(self, batch_id: str) -> BatchOrder | None:
        """Return the order of the batch: the message with which its workflow run was started.

        Return None if Temporal no longer has the run, because it keeps ended runs for a limited time.
        """
        ...

    async def ingested(self, batch_id: str) -> IngestResult | None:
        """Return the result of the activity that read the batch's input; None if it has not completed."""
        ...

    async def start(self, order: BatchOrder) -> None:
        """Start a workflow run for the batch. If the batch has a run already, nothing happens."""
        ...


class TemporalBatchRunSource(BatchRunSource):
    def __init__(self, client: Client) -> None:
        self._client = client

    async def all(self) -> AsyncIterator[BatchRun]:
        async for found in self._client.list_workflows(_BATCHES):
            yield _run(found)

    async def find(self, batch_id: str) -> BatchRun | None:
        handle = self._client.get_workflow_handle(batch_id, result_type=BatchResult)
        try:
            run = _run(await handle.describe())
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
        if not run.ended:
            return run
        try:
            return run._replace(result=await handle.result())
        except WorkflowFailureError:
            return run

    async def order(self, batch_id: str) -> BatchOrder | None:
        handle = self._client.get_workflow_handle(batch_id)
        try:
            async for event in handle.fetch_history_events(page_size=1):
                payloads = event.workflow_execution_started_event_attributes.input.payloads
                [order] = await self._client.data_converter.decode(payloads, [BatchOrder])
                assert isinstance(order, BatchOrder)
                return order
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        return None

    async def ingested(self, batch_id: str) -> IngestResult | None:
        handle, scheduled = self._client.get_workflow_handle(batch_id), 0
        async for event in handle.fetch_history_events():
            if event.activity_task_scheduled_event_attributes.activity_type.name == _INGEST:
                scheduled = event.event_id
            completed = event.activity_task_completed_event_attributes
            if scheduled and completed.scheduled_event_id == scheduled:
                payloads = completed.result.payloads
                [result] = await self._client.data_converter.decode(payloads, [IngestResult])
                assert isinstance(result, IngestResult)
                return result
        return None

    async def start(self, order: BatchOrder) -> None:
        await start_batch(self._client, order)


def _run(found: WorkflowExecution) -> BatchRun:
    is_open = found.status in (WorkflowExecutionStatus.RUNNING, None)
    return BatchRun(
        id=found.id,
        tenant=found.typed_search_attributes.get(search_attributes.TENANT) or "",
        started_at=found.start_time,
        ended="" if is_open or found.status is None else found.status.name.lower(),
        ended_at=found.close_time,
        status=found.typed_search_attributes.get(search_attributes.STATUS) or "",
    )
