"""Publish why a model of a batch waits: to the database, and to the batch's workflow.

The callers decide the reason: an attempt of a slice (`activities/execution/`), or the interceptor that sees
failed attempts (`worker/interceptors/failure_waiting_reasons.py`). Two other places decide reasons without
this publisher: control workers for the whole fleet (`worker/control_tasks/fleet_waiting_reasons.py`), and the
API for task queues that no worker polls (`api/services/batches/shown_waiting_reasons.py`).
"""

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

from batchwright.activities.services.signal_budget import (
    EVENTS_FOR_WITHDRAWALS,
    SignalBudget,
    history_has_room,
)
from batchwright.background import log_failure
from batchwright.contracts.temporal_payloads.batch import WaitingReason
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.batches.waiting_reasons import WaitingReasonsTable, WaitingRow, WaitingSource

logger = logging.getLogger(__name__)

PUBLISH_TASK = "publish_waiting_reason"  # name of the background tasks

_DATABASE_SECONDS = 5.0  # minimum time between two writes of the same reason
_EXPIRY_MARGIN_SECONDS = 30.0
_MAX_REMEMBERED = 10_000
_NEVER = float("-inf")


class ReasonSignal(Protocol):
    """A function that sends a waiting reason to the batch's workflow.

    If Temporal does not accept the signal, or the history of the workflow is too long, no error is raised.
    """

    async def __call__(self, batch_id: str, reason: WaitingReason) -> None: ...


@dataclass
class _Published:
    """The waiting reason that was last published for one model of a batch.

    Attributes:
        reason: the reason that was last sent to the workflow; empty if no reason was sent, or if the reason
            was withdrawn.
    """

    reason: str = ""
    written: str = ""  # the reason that was last written to the database
    written_at: float = _NEVER  # time of the last write to the database; `_NEVER` if it was withdrawn since
    cleared_at: float = _NEVER  # time at which the row in the database was last deleted
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # keeps reasons in their order
    unfinished: int = 0  # number of writes and withdrawals that wait for the lock or for the database


def _now() -> datetime:
    return datetime.now(UTC)


class WaitingReasonPublisher:
    """The publisher of waiting reasons: to the database for the API, and to the workflow of the batch.

    A waiting reason says why the lines of one model of a batch wait. The workflow gets a reason only if the
    reason has changed and `SignalBudget` allows another signal.
    """

    def __init__(
        self,
        signal: ReasonSignal,
        table: WaitingReasonsTable,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._signal, self._table, self._clock, self._now = signal, table, clock, now
        self._signals = SignalBudget(clock)
        self._published: dict[tuple[str, str], _Published] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def report(self, tenant: str, batch_id: str, model: str, reason: str, seconds: float) -> None:
        """Publish in the background that the model's lines wait because of `reason`.

        Args:
            seconds: seconds until the slice tries again. Soon after that, the reason expires, unless it is
                reported again.
        """
        published = self._of(batch_id, model)
        may_signal = published.reason != reason and self._signals.take(batch_id)
        is_recent = self._clock() - published.written_at < _DATABASE_SECONDS
        # While the database hangs, a reason is not written again: such writes would pile up.
        is_unfinished = published.unfinished > 0 and published.written_at > _NEVER
        if published.written == reason and (is_recent or is_unfinished) and not may_signal:
            return
        published.written, published.written_at = reason, self._clock()
        now = self._now()
        waiting = WaitingRow(
            tenant=tenant,
            batch_id=batch_id,
            model=model,
            source=WaitingSource.WORKER,
            reason=reason,
            since=now,
            until=now + timedelta(seconds=seconds + _EXPIRY_MARGIN_SECONDS),
        )
        if may_signal:
            published.reason = reason
        self._start(published, self._write(waiting, may_signal=may_signal))

    def clear(self, tenant: str, batch_id: str, model: str) -> None:
        """Withdraw a model's waiting reason in the background, because the slice now sends lines.

        A reason that another worker has reported is withdrawn, too.
        """
        published = self._of(batch_id, model)
        was_signalled, published.reason, published.written_at = bool(published.reason), "", _NEVER
        if was_signalled or self._clock() - published.cleared_at >= _DATABASE_SECONDS:
            published.cleared_at = self._clock()
            self._start(published, self._withdraw(tenant, batch_id, model, was_signalled=was_signalled))

    def _of(self, batch_id: str, model: str) -> _Published:
        key = batch_id, model
        found = self._published.get(key)
        if found is None:
            if len(self._published) >= _MAX_REMEMBERED:
                del self._published[next(iter(self._published))]
            found = self._published[key] = _Published()
        return found

    async def _write(self, waiting: WaitingRow, *, may_signal: bool) -> None:
        try:
            is_new = await self._table.report(waiting)
        except DatabaseUnavailable:
            is_new = False  # the next report writes it
        if is_new and not may_signal:  # another worker had withdrawn the reason
            may_signal = self._signals.take(waiting.batch_id)
        if may_signal:
            fields = {"batch_id": waiting.batch_id, "model": waiting.model, "reason": waiting.reason}
            logger.info("batch blocked", extra=fields)
            reason = WaitingReason(model=waiting.model, reason=waiting.reason, since=waiting.since)
            await self._signal(waiting.batch_id, reason)

    async def _withdraw(self, tenant: str, batch_id: str, model: str, *, was_signalled: bool) -> None:
        withdrawn = was_signalled
        with suppress(DatabaseUnavailable):  # the row expires
            is_cleared = await self._table.clear(tenant, batch_id, model, WaitingSource.WORKER)
            withdrawn = was_signalled or (is_cleared and self._signals.take(batch_id))
        if withdrawn:
            logger.info("batch unblocked", extra={"batch_id": batch_id, "model": model})
            await self._signal(batch_id, WaitingReason(model=model))

    def _start(self, published: _Published, publishing: Coroutine[None, None, None]) -> None:
        async def in_order() -> None:
            try:
                async with published.lock:
                    await publishing
            finally:
                published.unfinished -= 1

        published.unfinished += 1
        task = asyncio.create_task(in_order(), name=PUBLISH_TASK)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(log_failure)


def temporal_reason_signal(client: Client) -> ReasonSignal:
    """Return a function that sends the signal `waiting` to the batch's workflow.

    If the history of the workflow has no room for such a signal (`history_has_room`), nothing is sent.
    """

    async def send(batch_id: str, reason: WaitingReason) -> None:
        workflow = client.get_workflow_handle(batch_id)
        error = "the history of the batch's workflow is too long"
        try:
            if await history_has_room(workflow, 0 if reason.reason else EVENTS_FOR_WITHDRAWALS):
                return await workflow.signal("waiting", reason)
        except RPCError as failure:
            error = failure.message
        logger.info("waiting reason not delivered", extra={"batch_id": batch_id, "error": error})

    return send
