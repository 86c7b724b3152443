"""What the API asks of Temporal: a batch's start, signals to it, its state, and whether the server is there.

RunMissing          no run of that batch takes signals: it has ended, or never was
TemporalUnavailable (of batchwright.temporal) the server did not answer
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Protocol

from temporalio.client import (
    Client,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.batch import BatchOrder, BatchState
from batchwright.settings import Settings
from batchwright.temporal import TemporalUnavailable
from batchwright.temporal.codec import PayloadLocked
from batchwright.temporal.errors import is_unknown_namespace, not_connected, refused
from batchwright.temporal.namespace import Namespace
from batchwright.temporal.starting import start_batch

logger = logging.getLogger(__name__)

logger = logging.getLogger(__name__)
_LOOK_SECONDS = 2.0
_RPC_TIMEOUT = timedelta(seconds=10)
_CHECK_TIMEOUT = timedelta(seconds=2)
_STATE_TIMEOUT = timedelta(seconds=2)


class RunMissing(Exception):
    """The batch has no open run; the message is its id."""


class TemporalGateway(Protocol):
    async def start(self, order: BatchOrder) -> None:
        """Starts the batch's workflow; a second start of the same batch changes nothing."""
        ...

    async def cancel(self, batch_id: str) -> None: ...

    async def pause(self, batch_id: str) -> None: ...

    async def resume(self, batch_id: str) -> None: ...

    async def state(self, batch_id: str) -> BatchState | None:
        """What the run says of itself; None while no worker answers for it."""
        ...

    async def check(self) -> None:
        """Raises TemporalUnavailable unless the namespace answers."""
        ...


class ClientGateway(TemporalGateway):
    """The real one."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client, self._settings = client, settings
        self._namespace = Namespace(client, settings)
        self._is_set_up = False

    async def start(self, order: BatchOrder) -> None:
        async with self._translated(order.batch_id):
            if not await start_batch(self._client, order):
                return
        logger.info("batch created", extra=_told(order))

    async def cancel(self, batch_id: str) -> None:
        await self._signal(batch_id, "cancel")

    async def pause(self, batch_id: str) -> None:
        await self._signal(batch_id, "pause")

    async def resume(self, batch_id: str) -> None:
        await self._signal(batch_id, "resume")

    async def state(self, batch_id: str) -> BatchState | None:
        handle = self._client.get_workflow_handle(batch_id)
        try:
            async with self._translated(batch_id):
                return await handle.query("state", result_type=BatchState, rpc_timeout=_STATE_TIMEOUT)
        except PayloadLocked as error:
            logger.error("a batch's state cannot be read", extra={"batch_id": batch_id, "error": str(error)})
            return None
        except (RunMissing, TemporalUnavailable, WorkflowQueryFailedError, WorkflowQueryRejectedError):
            return None

    async def check(self) -> None:
        if not self._is_set_up:
            await self._namespace.check()
            self._is_set_up = True
        # Any id will do: the answer that nothing has it also proves that the namespace is served.
        handle = self._client.get_workflow_handle("batchwright-readiness")
        try:
            async with self._translated("batchwright-readiness"):
                await handle.describe(rpc_timeout=_CHECK_TIMEOUT)
        except RunMissing:
            return

    async def _signal(self, batch_id: str, signal: str) -> None:
        handle = self._client.get_workflow_handle(batch_id)
        async with self._translated(batch_id):
            await handle.signal(signal, rpc_timeout=_RPC_TIMEOUT)
        logger.info("batch steered", extra={"signal": signal, "batch_id": batch_id})

    @asynccontextmanager
    async def _translated(self, batch_id: str) -> AsyncGenerator[None]:
        """Temporal's errors as ours. An unknown namespace is NOT_FOUND too, but no missing run."""
        try:
            yield
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND and not is_unknown_namespace(error):
                raise RunMissing(batch_id) from error
            raise refused(self._settings, error) from error
        except RuntimeError as error:  # what a lazy client raises when it cannot connect
            raise not_connected(self._settings, error) from error


async def told_until_ready(temporal: TemporalGateway) -> None:
    """Logs what Temporal or its namespace lacks, each thing once, until all is there."""
    complaint = ""
    while True:
        try:
            return await temporal.check()
        except TemporalUnavailable as error:
            if str(error) != complaint:
                logger.warning("Temporal is not ready", extra={"error": str(error)})
            complaint = str(error)
        await asyncio.sleep(_LOOK_SECONDS)


def _told(order: BatchOrder) -> dict[str, str]:
    return {
        "batch_id": order.batch_id,
        "file_id": order.input_file_id,
        "endpoint": order.endpoint,
        "window": order.completion_window,
    }
