"""Tells a batch why one of its models waits: on the edge, at most once a minute a batch and model."""

import asyncio
import logging
import time

from temporalio.client import Client
from temporalio.service import RPCError

from batchwright.contracts.batch import WaitingReason

logger = logging.getLogger(__name__)
_EVERY_SECONDS = 60.0
_REMEMBERED = 10_000


class WaitingSignals:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._told: dict[tuple[str, str], tuple[str, float]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def waits(self, batch_id: str, model: str, reason: str) -> None:
        told = self._told.get((batch_id, model))
        if told is None or (told[0] != reason and time.monotonic() - told[1] >= _EVERY_SECONDS):
            self._tell(batch_id, model, reason)

    def moves(self, batch_id: str, model: str) -> None:
        """It sends again: takes the reason back, if one was told."""
        told = self._told.get((batch_id, model))
        if told is not None and told[0]:
            self._tell(batch_id, model, "")

    def _tell(self, batch_id: str, model: str, reason: str) -> None:
        if len(self._told) >= _REMEMBERED:
            self._told.clear()
        self._told[batch_id, model] = (reason, time.monotonic())
        task = asyncio.create_task(self._signal(batch_id, WaitingReason(model=model, reason=reason)))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _signal(self, batch_id: str, reason: WaitingReason) -> None:
        try:
            await self._client.get_workflow_handle(batch_id).signal("waiting", reason)
        except RPCError as error:
            logger.debug(
                "a waiting reason was not taken", extra={"batch_id": batch_id, "error": error.message}
            )
