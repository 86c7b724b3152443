"""Fake tables of single calls and rolling batches, in memory."""

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from batchwright.contracts.calls import ANSWER_LIFETIME, Call, CallAnswer, CallStatus, NewCall
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow
from batchwright.database.tables.calls import (
    LONGEST_OPEN,
    CallKey,
    CallLine,
    CallsTable,
    StoredCall,
    shown_status,
)
from batchwright.rules.batch_states import LIVE_STATES
from tests.fakes.tables.rows import Key, Rows, files_follow
from tests.fakes.tables.webhooks import record_event_of


class OpenBatch(NamedTuple):
    """The rolling batch that collects the calls of a group at present."""

    order: BatchOrder
    opened_at: datetime


class StoredRow(NamedTuple):
    """A row of the fake table: a call, whether its batch has collected it, and whether it was repeated."""

    call: Call
    collected: bool = False
    repeated: bool = False


def end_calls(rows: Rows, batch: BatchRow) -> None:
    """End the calls of a rolling batch that has ended, as the trigger of PostgreSQL does."""
    order = batch.order
    if order.policy.rolling is None or not batch.status.is_terminal or files_follow(batch):
        return
    _close(rows, order.tenant, order.policy.rolling.group, order.batch_id)
    cancelled = batch.status is BatchStatus.CANCELLED
    for key, row in list(rows.calls.items()):
        if (row.call.tenant, row.call.batch_id) == (order.tenant, order.batch_id):
            _end(rows, key, CallStatus.CANCELLED if cancelled else CallStatus.FAILED)


def _close(rows: Rows, tenant: str, group: str, batch_id: str) -> None:
    found = rows.rolling_batches.get((tenant, group))
    if found is not None and found.order.batch_id == batch_id:
        del rows.rolling_batches[tenant, group]


def _end(rows: Rows, key: Key, status: CallStatus, answer: bytes | None = None) -> None:
    row = rows.calls.get(key)
    if row is None or row.call.ended_at is not None:
        return
    ended = {"status": status, "answer": answer, "ended_at": rows.clock(), "request": b""}
    rows.calls[key] = row._replace(call=row.call.model_copy(update=ended))
    if row.call.notifies:
        record_event_of(rows, *key, f"response.{status}", rows.clock())


class MemoryCalls(CallsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def insert(self, call: NewCall) -> StoredCall | None:
        rows, key = self._rows.enter(), (call.tenant, call.id)
        found = rows.rolling_batches.get((call.tenant, call.group))
        if found is None or found.opened_at <= rows.clock() - LONGEST_OPEN:
            return None
        new = Call(
            **call.model_dump(exclude={"group"}),
            batch_id=found.order.batch_id,
            status=CallStatus.QUEUED,
            created_at=rows.clock(),
        )
        before = rows.calls.get(key)
        row = rows.calls[key] = StoredRow(new) if before is None else before._replace(repeated=True)
        stored = row.call
        is_started = (
            row.collected or stored.ended_at is not None or (call.tenant, stored.batch_id) in rows.batches
        )
        order = None if is_started and stored.batch_id != found.order.batch_id else found.order
        return StoredCall(stored.batch_id, stored.created_at, order)

    async def open(self, group: str, order: BatchOrder, max_batches: int) -> bool:
        if await self._count_batches(order.tenant) >= max_batches:
            return False
        rows = self._rows.enter()
        found = rows.rolling_batches.get((order.tenant, group))
        if found is None or found.opened_at <= rows.clock() - LONGEST_OPEN:
            rows.rolling_batches[order.tenant, group] = OpenBatch(order, rows.clock())
        return True

    async def move(self, call: NewCall, batch_id: str) -> bool:
        rows, key = self._rows.enter(), (call.tenant, call.id)
        row, found = rows.calls.get(key), rows.rolling_batches.get((call.tenant, call.group))
        if row is None or row.collected or row.call.ended_at is not None:
            return False
        if found is None or found.order.batch_id != batch_id:
            return False
        rows.calls[key] = row._replace(call=row.call.model_copy(update={"batch_id": batch_id}))
        return True

    async def withdraw(self, tenant: str, id: str, created_at: datetime) -> bool:
        row = self._rows.enter().calls.get((tenant, id))
        if row is None or row.collected or row.call.ended_at is not None:
            return row is not None
        if row.call.created_at == created_at and not row.repeated:
            del self._rows.calls[tenant, id]
        return False

    async def collect(self, tenant: str, group: str, batch_id: str) -> None:
        rows = self._rows.enter()
        _close(rows, tenant, group, batch_id)
        for key, row in self._of_batch(tenant, batch_id):
            if row.call.ended_at is None:
                rows.calls[key] = row._replace(collected=True)

    async def collected(self, tenant: str, batch_id: str) -> AsyncIterator[CallLine]:
        self._rows.enter()
        for (_, id), row in sorted(self._of_batch(tenant, batch_id)):
            if row.collected and row.call.ended_at is None:
                yield CallLine(id, row.call.request)

    async def get(self, tenant: str, id: str) -> Call | None:
        rows = self._rows.enter()
        row = rows.calls.get((tenant, id))
        if row is None:
            return None
        ended = row.call.ended_at
        if ended is not None and ended <= rows.clock() - ANSWER_LIFETIME:
            return None
        batch = rows.batches.get((tenant, row.call.batch_id))
        status = shown_status(row.call.status, batch and batch.status)
        error = batch.errors[0].message if batch is not None and batch.errors else ""
        return row.call.model_copy(update={"status": status, "error": error})

    async def count_open(self, tenant: str) -> int:
        rows = self._rows.enter().calls
        return sum(of == tenant and row.call.ended_at is None for (of, _), row in rows.items())

    async def _count_batches(self, tenant: str) -> int:
        rows = self._rows.enter()
        fresh = rows.clock() - LONGEST_OPEN
        taking = {
            each.order.batch_id
            for (of, _), each in rows.rolling_batches.items()
            if of == tenant and each.opened_at > fresh
        }
        live = {
            id
            for (of, id), row in rows.batches.items()
            if of == tenant and row.order.policy.rolling is not None and row.status in LIVE_STATES
        }
        return len(taking | live)

    async def unanswered(self, tenant: str, batch_id: str) -> frozenset[str]:
        self._rows.enter()
        found = self._of_batch(tenant, batch_id)
        return frozenset(id for (_, id), row in found if row.call.ended_at is None)

    async def cancelled(self, tenant: str, batch_id: str) -> frozenset[str]:
        self._rows.enter()
        found = self._of_batch(tenant, batch_id)
        return frozenset(id for (_, id), row in found if row.call.status is CallStatus.CANCELLED)

    async def answer(self, tenant: str, answers: Sequence[CallAnswer]) -> None:
        rows = self._rows.enter()
        for answer in answers:
            _end(rows, (tenant, answer.id), answer.status, answer.line)

    async def cancel(self, tenant: str, id: str) -> None:
        _end(self._rows.enter(), (tenant, id), CallStatus.CANCELLED)

    async def ended(self, keys: Collection[CallKey]) -> list[CallKey]:
        rows = self._rows.enter().calls
        return [key for key in keys if key not in rows or rows[key].call.ended_at is not None]

    async def count_old(self, before: datetime) -> int:
        return len(self._old(before))

    async def remove_old(self, before: datetime, limit: int) -> int:
        old = self._old(before)[:limit]
        for tenant, id in old:
            del self._rows.calls[tenant, id]
            self._delete_callback(tenant, id)
        for key, batch in list(self._rows.rolling_batches.items()):
            if batch.opened_at <= before:
                del self._rows.rolling_batches[key]
        return len(old)

    def _delete_callback(self, tenant: str, id: str) -> None:
        """Delete the endpoint of a call with its deliveries, unless one of them is pending."""
        for key, endpoint in list(self._rows.webhook_endpoints.items()):
            own = [
                (each, row.status)
                for each, row in self._rows.webhook_deliveries.items()
                if (row.tenant, row.endpoint_id) == key
            ]
            if (endpoint.tenant, endpoint.batch_id) == (tenant, id) and ("pending" not in dict(own).values()):
                del self._rows.webhook_endpoints[key]
                for each, _ in own:
                    del self._rows.webhook_deliveries[each]
                    self._rows.webhook_attempts.pop(each, None)

    def _old(self, before: datetime) -> list[Key]:
        rows = self._rows.enter()
        return [key for key, row in rows.calls.items() if self._is_old(row, before)]

    def _is_old(self, row: StoredRow, before: datetime) -> bool:
        call = row.call
        if call.ended_at is not None:
            return call.ended_at <= before
        has_batch = (call.tenant, call.batch_id) in self._rows.batches
        return not row.collected and not has_batch and call.created_at <= before

    def _of_batch(self, tenant: str, batch_id: str) -> list[tuple[Key, StoredRow]]:
        return [
            (key, row)
            for key, row in self._rows.calls.items()
            if (key[0], row.call.batch_id) == (tenant, batch_id)
        ]
