"""Tells a batch why one of its models waits: on the edge, at most once a minute a batch and model."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from temporalio.client import Client
from temporalio.service import RPCError

from batchwright.contracts.batch import WaitingReason

logger = logging.getLogger(__name__)
_EVERY_SECONDS = 60.0
_REMEMBERED = 10_000


class Tell(Protocol):
    """Best effort: it never raises for what the server does."""

    async def __call__(self, batch_id: str, reason: WaitingReason) -> None: ...


class WaitingSignals:
    def __init__(self, tell: Tell, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._told: dict[tuple[str, str], tuple[str, float]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def waits(self, batch_id: str, model: str, reason: str) -> None:
        told = self._told.get((batch_id, model))
        if told is None or (told[0] != reason and self._clock() - told[1] >= _EVERY_SECONDS):
            self._send(batch_id, model, reason, self._clock())

    def moves(self, batch_id: str, model: str) -> None:
        """It sends again: takes the reason back, if one was told."""
        told = self._told.get((batch_id, model))
        if told is not None and told[0]:
            self._send(batch_id, model, "", told[1])

    async def settle(self) -> None:
        """Waits for what is being told."""
        await asyncio.gather(*self._sending)

    def _send(self, batch_id: str, model: str, reason: str, at: float) -> None:
        if len(self._told) >= _REMEMBERED:
            self._told.clear()
        self._told[batch_id, model] = (reason, at)
        data = {"batch_id": batch_id, "model": model, **({"reason": reason} if reason else {})}
        logger.info("a batch waits" if reason else "a batch goes on", extra=data)
        task = asyncio.create_task(self._tell(batch_id, WaitingReason(model=model, reason=reason)))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


def temporal_tell(client: Client) -> Tell:
    """By the signal `waiting` of the batch's workflow."""

    async def tell(batch_id: str, reason: WaitingReason) -> None:
        try:
            await client.get_workflow_handle(batch_id).signal("waiting", reason)
        except RPCError as error:
            logger.info(
                "a waiting reason was not taken", extra={"batch_id": batch_id, "error": error.message}
            )

    return tell
