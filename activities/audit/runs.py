"""What an audit asks of Temporal: the batches' runs, of which the latest counts."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import NamedTuple, Protocol

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts import search
from batchwright.contracts.batch import BatchOrder, BatchResult
from batchwright.temporal.starting import start_batch

_BATCHES = "WorkflowType = 'BatchWorkflow'"


class Run(NamedTuple):
    """`ended` is empty while it is open, else how it closed; `result` is there where it closed by itself."""

    id: str
    tenant: str
    started_at: datetime
    ended: str = ""
    ended_at: datetime | None = None
    result: BatchResult | None = None


class Runs(Protocol):
    """All raise RPCError where Temporal does not answer."""

    def all(self) -> AsyncIterator[Run]:
        """Without their results."""
        ...

    async def find(self, batch_id: str) -> Run | None: ...

    async def order(self, batch_id: str) -> BatchOrder:
        """What the run was started with."""
        ...

    async def start(self, order: BatchOrder) -> None:
        """A second start of the same batch changes nothing."""
        ...


class TemporalRuns(Runs):
    def __init__(self, client: Client) -> None:
        self._client = client

    async def all(self) -> AsyncIterator[Run]:
        async for found in self._client.list_workflows(_BATCHES):
            yield _run(found)

    async def find(self, batch_id: str) -> Run | None:
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

    async def order(self, batch_id: str) -> BatchOrder:
        handle = self._client.get_workflow_handle(batch_id)
        async for event in handle.fetch_history_events(page_size=1):
            payloads = event.workflow_execution_started_event_attributes.input.payloads
            [order] = await self._client.data_converter.decode(payloads, [BatchOrder])
            assert isinstance(order, BatchOrder)
            return order
        raise AssertionError("unreachable: every history begins with the start")

    async def start(self, order: BatchOrder) -> None:
        await start_batch(self._client, order)


def _run(found: WorkflowExecution) -> Run:
    is_open = found.status in (WorkflowExecutionStatus.RUNNING, None)
    return Run(
        id=found.id,
        tenant=found.typed_search_attributes.get(search.TENANT) or "",
        started_at=found.start_time,
        ended="" if is_open or found.status is None else found.status.name.lower(),
        ended_at=found.close_time,
    )
