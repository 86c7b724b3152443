"""Tables of single calls and of the rolling batches that collect them."""

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from pydantic import TypeAdapter

from batchwright.contracts.calls import ANSWER_LIFETIME, Call, CallAnswer, CallStatus, NewCall
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.terms import BatchStatus, ValidationError
from batchwright.database.driver import Row
from batchwright.database.pool import ConnectionPool
from batchwright.database.sql import queries
from batchwright.database.tables.tenants.admissions import PostgresAdmissions

# After this time, a rolling batch that has not collected its calls gets no more of them.
LONGEST_OPEN = timedelta(seconds=10)
_PAGE = 200
_ERRORS = TypeAdapter(list[ValidationError])


class CallKey(NamedTuple):
    tenant: str
    id: str


class StoredCall(NamedTuple):
    """The result of storing a call (a single request of a client): its batch, and a batch to start.

    `batch_id` is the batch in which the call is stored. There are three cases for `order`:

    - `order` describes the batch `batch_id`: start this batch.
    - `order` describes another batch: start the batch of `order`, and then move the call to it with
      `CallsTable.move`. In this case, an earlier request has stored the call in the batch `batch_id`, and the
      batch `batch_id` may never have been started.
    - `order` is None: start no batch. In this case, the batch `batch_id` has started and accepts no further
      calls, or the call has ended.
    """

    batch_id: str
    created_at: datetime
    order: BatchOrder | None


class CallLine(NamedTuple):
    id: str
    request: bytes


class CallsTable(Protocol):
    """Table of calls (single requests of clients). Each call becomes a line of a rolling batch.

    A rolling batch collects the calls of one group. The calls of a group have the same caller, model,
    endpoint and completion window. When a call ends, its request body is deleted. An ended call does not
    change.
    """

    async def insert(self, call: NewCall) -> StoredCall | None:
        """Store a call (a single request of a client) in the open rolling batch of its group, `call.group`.

        The calls of a group have the same caller, model, endpoint and completion window. A rolling batch is
        open while it collects the calls of its group. If the group has no open batch, store nothing and
        return None. If the call is stored already, do not move it to another batch.
        """
        ...

    async def open(self, group: str, order: BatchOrder, max_batches: int) -> bool:
        """Open the rolling batch `order` for the calls of a group, and return True.

        A call is a single request of a client. The calls of a group have the same caller, model, endpoint and
        completion window. A rolling batch is open while it collects the calls of its group. In two cases,
        nothing changes:

        - The tenant already has `max_batches` rolling batches that are open or have started and not ended:
          return False.
        - Otherwise, if the group already has an open batch: return True.
        """
        ...

    async def move(self, call: NewCall, batch_id: str) -> bool:
        """Move a call (a single request of a client) to the rolling batch `batch_id`, and return True.

        Start this batch before you move the call. Change nothing and return False in these cases:

        - The call is already a line of a batch.
        - The call has ended.
        - The batch `batch_id` no longer collects calls of `call.group`.
        """
        ...

    async def withdraw(self, tenant: str, id: str, created_at: datetime) -> bool:
        """Delete a call (a client's single request) after a failed start of its batch. There are three cases:

        - The call is already a line of a started batch, or the call has ended: keep the call, and return
          True. The client's request has succeeded.
        - The client has sent the same request again, and the repeated request may still start a batch: keep
          the call, and return False.
        - In all other cases: delete the call, and return False.

        Args:
            created_at: time at which the call was stored. If the call was deleted and stored again at another
                time, it is kept.
        """
        ...

    async def collect(self, tenant: str, group: str, batch_id: str) -> None:
        """End the collection of calls (single requests of clients) by a rolling batch.

        The calls that are stored in the batch become its lines, except calls that have ended. The batch gets
        no further calls of `group`.
        """
        ...

    def collected(self, tenant: str, batch_id: str) -> AsyncIterator[CallLine]:
        """Yield the calls (single requests of clients) that are lines of the batch and have not ended, by id.

        Call `collect` first, because `collect` decides which calls are lines of the batch.
        """
        ...

    async def get(self, tenant: str, id: str) -> Call | None:
        """Return a call (a client's single request).

        Return None if there is no such call, or if the call ended more than ANSWER_LIFETIME ago.
        """
        ...

    async def count_open(self, tenant: str) -> int:
        """Return how many calls (single requests of clients) of a tenant have not ended."""
        ...

    async def unanswered(self, tenant: str, batch_id: str) -> frozenset[str]:
        """Return the ids of those calls (single requests of clients) of the batch that have not ended."""
        ...

    async def cancelled(self, tenant: str, batch_id: str) -> frozenset[str]:
        """Return the ids of those calls (single requests of clients) of the batch that were cancelled."""
        ...

    async def answer(self, tenant: str, answers: Sequence[CallAnswer]) -> None:
        """Store the answers to calls (single requests of clients), and end these calls.

        Calls that have already ended do not change.
        """
        ...

    async def cancel(self, tenant: str, id: str) -> None:
        """End a call (a client's single request) as `cancelled`. A call that has already ended does not
        change.
        """
        ...

    async def ended(self, keys: Collection[CallKey]) -> list[CallKey]:
        """Return the calls (single requests of clients) in `keys` that have ended or do not exist.

        The calls may belong to several tenants.
        """
        ...

    async def count_old(self, before: datetime) -> int:
        """Return how many calls (single requests of clients) are old enough for `remove_old`."""
        ...

    async def remove_old(self, before: datetime, limit: int) -> int:
        """Delete old calls (single requests of clients), and return the number of deleted calls.

        Two kinds of calls are deleted, at most `limit` of each kind:

        - Calls that ended at the time `before` or earlier.
        - Calls that were created at the time `before` or earlier, and whose batch was never started.

        The webhook endpoint of a deleted call is deleted, too, unless a delivery to this endpoint is pending.

        Also delete the records of rolling batches (batches of single calls) that were opened at the time
        `before` or earlier, but never started. The returned number does not include these records.
        """
        ...


@dataclass(frozen=True)
class CallQueries:
    insert: str
    open: str
    move: str
    withdraw: str
    is_collected: str
    close: str
    collect: str
    collected: str
    get: str
    count_open: str
    count_batches: str
    unanswered: str
    cancelled: str
    answer: str
    cancel: str
    ended: str
    count_old: str
    remove_old: str


class PostgresCalls(CallsTable):
    def __init__(self, connections: ConnectionPool, admissions: PostgresAdmissions) -> None:
        self._connections, self._admissions = connections, admissions
        self._sql = queries(CallQueries, "calls")

    async def insert(self, call: NewCall) -> StoredCall | None:
        found = await self._connections.fetchrow(
            self._sql.insert,
            call.tenant,
            call.group,
            LONGEST_OPEN,
            call.id,
            call.endpoint,
            call.model,
            call.request,
            call.notifies,
            call.echoed,
        )
        if found is None:
            return None
        made = found["made"]
        order = None if made is None else BatchOrder.model_validate_json(made)
        return StoredCall(found["batch_id"], found["created_at"], order)

    async def open(self, group: str, order: BatchOrder, max_batches: int) -> bool:
        tenant, made = order.tenant, order.model_dump_json()
        async with self._admissions.transaction(tenant) as session:
            found = await session.fetchrow(self._sql.count_batches, tenant, LONGEST_OPEN)
            if found is not None and found["count"] >= max_batches:
                return False
            await session.execute(self._sql.open, tenant, group, order.batch_id, made, LONGEST_OPEN)
            return True

    async def move(self, call: NewCall, batch_id: str) -> bool:
        place = call.tenant, call.group, call.id, batch_id
        return await self._connections.fetchrow(self._sql.move, *place) is not None

    async def withdraw(self, tenant: str, id: str, created_at: datetime) -> bool:
        await self._connections.execute(self._sql.withdraw, tenant, id, created_at)
        return await self._connections.fetchrow(self._sql.is_collected, tenant, id) is not None

    async def collect(self, tenant: str, group: str, batch_id: str) -> None:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.close, tenant, group, batch_id)
            await session.execute(self._sql.collect, tenant, batch_id)

    async def collected(self, tenant: str, batch_id: str) -> AsyncIterator[CallLine]:
        last = ""
        while page := await self._connections.fetch(self._sql.collected, tenant, batch_id, last, _PAGE):
            for row in page:
                yield CallLine(row["id"], row["request"])
            last = page[-1]["id"]

    async def get(self, tenant: str, id: str) -> Call | None:
        found = await self._connections.fetchrow(self._sql.get, tenant, id, ANSWER_LIFETIME)
        return None if found is None else _parse(found)

    async def count_open(self, tenant: str) -> int:
        found = await self._connections.fetchrow(self._sql.count_open, tenant)
        return 0 if found is None else found["count"]

    async def unanswered(self, tenant: str, batch_id: str) -> frozenset[str]:
        return frozenset(
            row["id"] for row in await self._connections.fetch(self._sql.unanswered, tenant, batch_id)
        )

    async def cancelled(self, tenant: str, batch_id: str) -> frozenset[str]:
        return frozenset(
            row["id"] for row in await self._connections.fetch(self._sql.cancelled, tenant, batch_id)
        )

    async def answer(self, tenant: str, answers: Sequence[CallAnswer]) -> None:
        ids, statuses, lines = (
            [answer.id for answer in answers],
            [answer.status.value for answer in answers],
            [answer.line for answer in answers],
        )
        await self._connections.execute(self._sql.answer, tenant, ids, statuses, lines)

    async def cancel(self, tenant: str, id: str) -> None:
        await self._connections.execute(self._sql.cancel, tenant, id)

    async def ended(self, keys: Collection[CallKey]) -> list[CallKey]:
        tenants, ids = [key.tenant for key in keys], [key.id for key in keys]
        found = await self._connections.fetch(self._sql.ended, tenants, ids)
        return [CallKey(row["tenant"], row["id"]) for row in found]

    async def count_old(self, before: datetime) -> int:
        found = await self._connections.fetchrow(self._sql.count_old, before)
        return 0 if found is None else found["count"]

    async def remove_old(self, before: datetime, limit: int) -> int:
        found = await self._connections.fetchrow(self._sql.remove_old, before, limit)
        return 0 if found is None else found["count"]


def shown_status(status: CallStatus, batch: BatchStatus | None) -> CallStatus:
    """Return the status of a call (a client's single request) as clients see it.

    It is `in_progress` if the call is queued and its batch is running. In all other cases, it is `status`.
    `batch` is the status of the call's batch; None if the batch has no row.
    """
    runs = batch in (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING)
    return CallStatus.IN_PROGRESS if runs and status is CallStatus.QUEUED else status


def _parse(record: Row) -> Call:
    columns = dict(record.items())
    errors, batch = columns["batch_errors"], columns["batch_status"]
    found = _ERRORS.validate_json(errors) if errors is not None else []
    status = shown_status(CallStatus(columns["status"]), BatchStatus(batch) if batch else None)
    return Call.model_validate({**columns, "status": status, "error": found[0].message if found else ""})
