"""Calls to Temporal that the API needs: start a batch, send a signal to it, read its state, and check the
connection.

All calls except `state` raise TemporalUnavailable if the server does not respond. The signals (`cancel`,
`pause`, `resume` and `abandon`) raise RunMissing if the batch has no running workflow.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Protocol

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)

from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchState
from batchwright.contracts.temporal_payloads.ingestion import IngestionActivities, IngestResult
from batchwright.settings import Settings
from batchwright.temporal import TemporalUnavailable
from batchwright.temporal.batch_schedules import BatchSchedules, TemporalBatchSchedules
from batchwright.temporal.codec import PayloadDecryptionError
from batchwright.temporal.errors import translated_errors
from batchwright.temporal.namespace.namespace_checks import Namespace
from batchwright.temporal.pending_activities import PendingActivity, pending_activities
from batchwright.temporal.workflow_starts import start_batch

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0
_RPC_TIMEOUT = timedelta(seconds=10)
_CHECK_TIMEOUT = timedelta(seconds=2)
_STATE_TIMEOUT = timedelta(seconds=2)
_INGEST = IngestionActivities.ingest.__name__
_EVENTS_PER_PAGE = 50  # enough, because ingestion is the first step of a batch


class RunMissing(Exception):
    """The error if a batch has no running workflow: the batch has ended or never existed. The message is the
    batch id.
    """


class TemporalGateway(Protocol):
    schedules: BatchSchedules

    async def start(self, order: BatchOrder) -> bool:
        """Start the workflow of a new batch with `order` as its argument, and return True.

        If the workflow was already started, do nothing and return False. The argument of that workflow can
        differ from `order`.
        """
        ...

    async def cancel(self, batch_id: str) -> None: ...

    async def pause(self, batch_id: str, change: int) -> None:
        """Pause the batch. If the workflow has received a pause or resume with a greater number in the last
        minute, the workflow ignores this signal.

        Args:
            change: number of this pause, from `BatchesTable.claim_pause_or_resume`.
        """
        ...

    async def resume(self, batch_id: str, change: int) -> None:
        """Resume the batch. If the workflow has received a pause or resume with a greater number in the last
        minute, the workflow ignores this signal.

        Args:
            change: number of this resume, from `BatchesTable.claim_pause_or_resume`.
        """
        ...

    async def abandon(self, batch_id: str) -> None: ...

    async def state(self, batch_id: str) -> BatchState | None:
        """Return the state that the batch's workflow reports, for example whether it is paused.

        Return None if the batch has no workflow, or if Temporal or the workers do not respond.
        """
        ...

    async def running_order(self, batch_id: str) -> BatchOrder | None:
        """Return the order of a batch: the message with which its running workflow was started.

        Return None if the batch has no workflow, or if its workflow has ended.

        Raises:
            TemporalUnavailable: Temporal does not respond, or the order cannot be decrypted.
        """
        ...

    async def ingested(self, batch_id: str) -> IngestResult | None:
        """Return the result of ingestion, the step that reads and checks the batch's input.

        Return None if this step has not completed, or if the batch has no workflow.

        Raises:
            TemporalUnavailable: Temporal does not respond, or the result cannot be decrypted.
        """
        ...

    async def pending(self, workflow_id: str) -> list[PendingActivity]:
        """Return the activities of a workflow that have not ended; empty if there is no such workflow."""
        ...

    async def children(self, workflow_id: str) -> list[str]:
        """Return the ids of a workflow's child workflows that have not ended, sorted.

        The result is empty if there is no such workflow.
        """
        ...

    async def has_ended(self, workflow_id: str) -> bool:
        """Return True if a workflow has ended, or if Temporal knows no such workflow.

        A batch's workflow has the same id as the batch.
        """
        ...

    async def check(self) -> None:
        """Check that Temporal responds, and that its namespace has all search attributes that batches need.

        Raises:
            TemporalUnavailable: Temporal does not respond, the namespace is missing, or a search attribute is
                missing or has the wrong type.
        """
        ...


class TemporalClientGateway(TemporalGateway):
    """The gateway that calls Temporal with Temporal's Python SDK."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client, self._settings = client, settings
        self._namespace = Namespace(client, settings)
        self._is_set_up = False
        self.schedules = TemporalBatchSchedules(client, settings)

    async def start(self, order: BatchOrder) -> bool:
        async with self._translated(order.batch_id):
            if not await start_batch(self._client, order):
                return False
        fields = {
            "batch_id": order.batch_id,
            "file_id": order.input_file_id,
            "endpoint": order.endpoint,
            "window": order.completion_window,
        }
        logger.info("batch created", extra=fields)
        return True

    async def cancel(self, batch_id: str) -> None:
        await self._signal(batch_id, "cancel")

    async def pause(self, batch_id: str, change: int) -> None:
        await self._signal(batch_id, "pause", change)

    async def resume(self, batch_id: str, change: int) -> None:
        await self._signal(batch_id, "resume", change)

    async def abandon(self, batch_id: str) -> None:
        await self._signal(batch_id, "abandon")

    async def state(self, batch_id: str) -> BatchState | None:
        handle = self._client.get_workflow_handle(batch_id)
        try:
            async with self._translated(batch_id):
                return await handle.query("state", result_type=BatchState, rpc_timeout=_STATE_TIMEOUT)
        except (RunMissing, TemporalUnavailable, WorkflowQueryFailedError, WorkflowQueryRejectedError):
            return None

    async def running_order(self, batch_id: str) -> BatchOrder | None:
        handle = self._client.get_workflow_handle(batch_id)
        try:
            async with self._translated(batch_id):
                run = await handle.describe(rpc_timeout=_RPC_TIMEOUT)
                if run.status is not WorkflowExecutionStatus.RUNNING:
                    return None
                async for event in handle.fetch_history_events(page_size=1, rpc_timeout=_RPC_TIMEOUT):
                    started = event.workflow_execution_started_event_attributes
                    decode = self._client.data_converter.decode
                    [order] = await decode(started.input.payloads, [BatchOrder])
                    return order
        except RunMissing:
            return None
        return None

    async def ingested(self, batch_id: str) -> IngestResult | None:
        events = self._client.get_workflow_handle(batch_id).fetch_history_events(
            page_size=_EVENTS_PER_PAGE, rpc_timeout=_RPC_TIMEOUT
        )
        scheduled = set[int]()
        try:
            async with self._translated(batch_id):
                async for event in events:
                    begun = event.activity_task_scheduled_event_attributes
                    if begun.activity_type.name == _INGEST:
                        scheduled.add(event.event_id)
                    ended = event.activity_task_completed_event_attributes
                    if ended.scheduled_event_id in scheduled:
                        payloads = ended.result.payloads
                        [result] = await self._client.data_converter.decode(payloads, [IngestResult])
                        return result
        except RunMissing:
            return None
        return None

    async def pending(self, workflow_id: str) -> list[PendingActivity]:
        try:
            async with self._translated(workflow_id):
                return await pending_activities(self._client, workflow_id)
        except RunMissing:
            return []

    async def children(self, workflow_id: str) -> list[str]:
        handle = self._client.get_workflow_handle(workflow_id)
        try:
            async with self._translated(workflow_id):
                run = await handle.describe(rpc_timeout=_RPC_TIMEOUT)
        except RunMissing:
            return []
        return sorted(child.workflow_id for child in run.raw_description.pending_children)

    async def has_ended(self, workflow_id: str) -> bool:
        handle = self._client.get_workflow_handle(workflow_id)
        try:
            async with self._translated(workflow_id):
                run = await handle.describe(rpc_timeout=_RPC_TIMEOUT)
        except RunMissing:
            return True
        return run.status is not WorkflowExecutionStatus.RUNNING

    async def check(self) -> None:
        if not self._is_set_up:
            await self._namespace.check()
            self._is_set_up = True
        # Any id works. The response "no such workflow" proves that the namespace is served.
        handle = self._client.get_workflow_handle("batchwright-readiness")
        try:
            async with self._translated("batchwright-readiness"):
                await handle.describe(rpc_timeout=_CHECK_TIMEOUT)
        except RunMissing:
            return

    async def _signal(self, batch_id: str, signal: str, *args: int) -> None:
        handle = self._client.get_workflow_handle(batch_id)
        async with self._translated(batch_id):
            await handle.signal(signal, args=args, rpc_timeout=_RPC_TIMEOUT)
        logger.info("batch signalled", extra={"signal": signal, "batch_id": batch_id})

    @asynccontextmanager
    async def _translated(self, batch_id: str) -> AsyncGenerator[None]:
        try:
            async with translated_errors(self._settings, RunMissing(batch_id)):
                yield
        except PayloadDecryptionError as error:
            fields = {"batch_id": batch_id, "error": str(error)}
            logger.error("data of a batch in Temporal cannot be decrypted", extra=fields)
            raise TemporalUnavailable("The data of the batch in Temporal cannot be decrypted.") from error


async def log_until_ready(temporal: TemporalGateway) -> None:
    """Wait until Temporal and its namespace are ready. Log the reason for the wait each time it changes."""
    complaint = ""
    while True:
        try:
            return await temporal.check()
        except TemporalUnavailable as error:
            if str(error) != complaint:
                logger.warning("Temporal is not ready", extra={"error": str(error)})
            complaint = str(error)
        await asyncio.sleep(_LOOK_SECONDS)
