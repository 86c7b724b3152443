"""Tells why a model of a batch waits: the database always, the run on the edge, not more than it can bear."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from temporalio.client import Client
from temporalio.service import RPCError

from batchwright.contracts.batch import WaitingReason
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.waiting_base import Source, Waiting, WaitingTable

logger = logging.getLogger(__name__)
_EVERY_SECONDS = 60.0
# Of changes that follow each other at once: what is in flight when a backend breaks may settle afterwards.
_AT_ONCE = 4
_AGAIN_SECONDS = 5.0  # between two words to the database about the same thing
_MARGIN_SECONDS = 30.0
_REMEMBERED = 10_000


class Tell(Protocol):
    """Best effort: it never raises for what the server does."""

    async def __call__(self, batch_id: str, reason: WaitingReason) -> None: ...


@dataclass
class _Told:
    reason: str = ""
    at: float = float("-inf")  # the run was told last
    left: float = _AT_ONCE  # how often it might have been told then without a pause
    noted_at: float = float("-inf")  # in the database
    looked_at: float = float("-inf")  # there, for what others told
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # what is said first arrives first


def _now() -> datetime:
    return datetime.now(UTC)


class WaitingSignals:
    def __init__(
        self,
        tell: Tell,
        table: WaitingTable,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._tell, self._table, self._clock, self._now = tell, table, clock, now
        self._told: dict[tuple[str, str], _Told] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def waits(self, tenant: str, batch_id: str, model: str, reason: str, seconds: float) -> None:
        """For `seconds`, after which the slice tries again and tells again."""
        told = self._of(batch_id, model)
        if told.reason == reason and self._clock() - told.noted_at < _AGAIN_SECONDS:
            return
        told.noted_at = self._clock()
        is_edge = told.reason != reason and self._may_tell(told)
        now = self._now()
        waiting = Waiting(
            tenant=tenant,
            batch_id=batch_id,
            model=model,
            source=Source.WORKER,
            reason=reason,
            since=now,
            until=now + timedelta(seconds=seconds + _MARGIN_SECONDS),
        )
        if is_edge:
            told.reason = reason
            self._count(told)
        self._start(told, self._note(waiting, told, is_edge=is_edge))

    def moves(self, tenant: str, batch_id: str, model: str) -> None:
        """It sends: takes the reason back, whichever worker told it."""
        told = self._of(batch_id, model)
        was_told, told.reason, told.noted_at = bool(told.reason), "", float("-inf")
        if was_told or self._clock() - told.looked_at >= _AGAIN_SECONDS:
            told.looked_at = self._clock()
            self._start(told, self._take_back(tenant, batch_id, model, was_told=was_told))

    async def settle(self) -> None:
        """Waits for what is being told."""
        await asyncio.gather(*self._sending)

    def _of(self, batch_id: str, model: str) -> _Told:
        if len(self._told) >= _REMEMBERED:
            self._told.clear()
        return self._told.setdefault((batch_id, model), _Told())

    def _leave(self, told: _Told) -> float:
        return min(_AT_ONCE, told.left + (self._clock() - told.at) / _EVERY_SECONDS)

    def _may_tell(self, told: _Told) -> bool:
        return self._leave(told) >= 1

    def _count(self, told: _Told) -> None:
        told.left, told.at = self._leave(told) - 1, self._clock()

    async def _note(self, waiting: Waiting, told: _Told, *, is_edge: bool) -> None:
        try:
            is_news = await self._table.tell(waiting)
        except DatabaseUnavailable:
            is_news = False  # the next time tells all
        if is_news and not is_edge and self._may_tell(told):
            self._count(told)  # another worker had taken it back
            is_edge = True
        if is_edge:
            data = {"batch_id": waiting.batch_id, "model": waiting.model, "reason": waiting.reason}
            logger.info("a batch waits", extra=data)
            reason = WaitingReason(model=waiting.model, reason=waiting.reason, since=waiting.since)
            await self._tell(waiting.batch_id, reason)

    async def _take_back(self, tenant: str, batch_id: str, model: str, *, was_told: bool) -> None:
        with suppress(DatabaseUnavailable):  # it runs out
            was_told = await self._table.take_back(tenant, batch_id, model, Source.WORKER) or was_told
        if was_told:
            logger.info("a batch goes on", extra={"batch_id": batch_id, "model": model})
            await self._tell(batch_id, WaitingReason(model=model))

    def _start(self, told: _Told, telling: Coroutine[None, None, None]) -> None:
        async def in_turn() -> None:
            async with told.lock:
                await telling

        task = asyncio.create_task(in_turn())
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
