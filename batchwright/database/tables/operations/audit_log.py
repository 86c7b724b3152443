"""Tables of the audit log: actions of operators and destructive actions of tenants, and their outcomes."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from pydantic import JsonValue

from batchwright.contracts.api_objects.audit_log import AuditAction, AuditOutcome, AuditTargetType
from batchwright.contracts.message import Message
from batchwright.database.driver import Row
from batchwright.database.pool import ConnectionPool
from batchwright.database.sql import queries
from batchwright.rules.ids import audit_entry_position, audit_entry_prefix

_FIRST, _LAST = "act_", "act_g"  # less and greater than all ids


class AuditActor(Message):
    """The actor of an administrative or destructive operation. Fields that do not apply are empty.

    Attributes:
        source: `api` for a request, `cli` for a command that acts on the database itself.
        user: user of the request; for a command, the user of the operating system.
        address: address of the client; for a command, the host name.
    """

    source: Literal["api", "cli"]
    tenant: str = ""
    key_id: str = ""
    user: str = ""
    address: str = ""
    request_id: str = ""


class AuditTarget(Message):
    """The object that an action in the audit log changes.

    `id` is empty if the object has no id. `tenant` is the tenant that owns the object; empty if there is
    none.
    """

    type: AuditTargetType
    id: str = ""
    tenant: str = ""


class AuditEntry(Message):
    """First record of an action in the audit log, made when the action begins. The outcome is added later.

    `before` is the state of the target before the action, without secrets; None if the target did not exist.
    """

    created_at: datetime
    actor: AuditActor
    action: AuditAction
    target: AuditTarget
    before: JsonValue = None


class AuditResult(Message):
    """The outcome of an action that the audit log records.

    Attributes:
        after: state of the target after the action, without secrets; None if the target does not exist.
        code: an error code or HTTP status if the action was refused; the name of the exception if the action
            failed in another way; empty if it succeeded.
    """

    outcome: AuditOutcome
    code: str = ""
    after: JsonValue = None


UNFINISHED = AuditResult(outcome=AuditOutcome.UNKNOWN)


class RecordedAction(NamedTuple):
    """An entry of the audit log. Its outcome is `unknown` if no outcome was recorded."""

    id: str
    entry: AuditEntry
    result: AuditResult


@dataclass(frozen=True)
class AuditFilters:
    """Conditions that select entries of the audit log. An entry must meet all of them. None means no
    condition.

    Args:
        actor: the API key, the user or the tenant of the actor.
        target: id of the target.
        tenant: tenant to which the target belongs.
        created_after: the action began at or after this time.
        created_before: the action began before this time.
    """

    action: AuditAction | None = None
    actor: str | None = None
    target: str | None = None
    tenant: str | None = None
    outcome: AuditOutcome | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


class AuditLogExtent(NamedTuple):
    """Range of the audit log: its oldest and newest entries, and the oldest action that may still be running.

    The position of an entry is its number in the log, counted from 1. Retention, the regular deletion of old
    data, deletes the oldest entries.

    Attributes:
        latest: position of the newest entry, even if this entry was deleted; 0 if there never was an entry.
        oldest: position of the oldest entry that still exists; None if no entry exists.
        ended_below: all actions with a smaller id have ended. This is the id of the oldest action that may
            still be running. If no action may be running, it is the id that the next entry will get.
    """

    latest: int
    oldest: int | None
    ended_below: str

    def deleted_after(self, position: int) -> int:
        """Return how many entries with a position greater than `position` were deleted because of their age.

        A reader that has read the log only up to `position` can no longer read these entries.
        """
        oldest = self.latest + 1 if self.oldest is None else self.oldest
        return max(0, oldest - position - 1)


class AuditLogTable(Protocol):
    """The audit log. Entries cannot be changed. They are deleted only when they are old enough (retention).

    Entries become visible in the order of their ids. If a reader sees an entry, no entry with a smaller id
    can appear later.
    """

    async def begin(self, entry: AuditEntry) -> str:
        """Record that an action begins. Return the id of its entry."""
        ...

    async def finish(self, id: str, result: AuditResult) -> None:
        """Record `result` as the outcome of the action whose entry has the id `id`. If an outcome is recorded
        already, change nothing.
        """
        ...

    async def extent(self, running_since: datetime) -> AuditLogExtent:
        """Return the positions of the oldest and newest entries, and the id `ended_below`.

        Every action with an id smaller than `ended_below` has ended.

        Args:
            running_since: an action that began after this time counts as running until it has an outcome. An
                action that began earlier counts as ended. For a repair by the consistency check, which may
                run for long, this limit is one day earlier.
        """
        ...

    async def id_at(self, position: int) -> str | None:
        """Return the id of the entry at a position in the log; None if the entry is deleted or does not exist
        yet.

        If the database is restored from a backup, its newest entries are lost. New entries then get the
        positions of the lost entries, but other ids. To find out if an entry was lost, compare its id with
        the id that is now at its position.
        """
        ...

    async def page(
        self,
        filters: AuditFilters,
        *,
        limit: int,
        ascending: bool,
        above: str | None = None,
        below: str | None = None,
    ) -> tuple[list[RecordedAction], bool]:
        """Return at most `limit` entries of the audit log that meet the filters. The second item is True if
        more follow.

        Args:
            ascending: True to sort by ascending id (oldest first), False by descending id.
            above: return only entries with greater ids; None for all.
            below: return only entries with smaller ids; None for all.
        """
        ...

    async def count_old(self, before: datetime) -> int:
        """Return how many entries of the audit log are about actions that began at the time `before` or
        earlier.
        """
        ...

    async def remove_old(self, before: datetime, limit: int) -> int:
        """Delete at most `limit` entries of the audit log whose action began at the time `before` or earlier.

        Return the number of deleted entries.
        """
        ...


@dataclass(frozen=True)
class AuditLogQueries:
    begin: str
    finish: str
    extent: str
    id_at: str
    page_down: str
    page_up: str
    count_old: str
    allow_removal: str
    remove_old: str


class PostgresAuditLog(AuditLogTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(AuditLogQueries, "audit_log")

    async def begin(self, entry: AuditEntry) -> str:
        actor, target = entry.actor, entry.target
        rows = await self._connections.fetch(
            self._sql.begin,
            entry.created_at,
            actor.source,
            actor.tenant,
            actor.key_id,
            actor.user,
            actor.address,
            actor.request_id,
            entry.action,
            target.type,
            target.id,
            target.tenant,
            _json(entry.before),
        )
        id: str = rows[0]["id"]
        return id

    async def finish(self, id: str, result: AuditResult) -> None:
        await self._connections.execute(
            self._sql.finish, id, result.outcome, result.code, _json(result.after)
        )

    async def extent(self, running_since: datetime) -> AuditLogExtent:
        (row,) = await self._connections.fetch(self._sql.extent, running_since)
        oldest = None if row["oldest"] is None else audit_entry_position(row["oldest"])
        return AuditLogExtent(latest=row["latest"], oldest=oldest, ended_below=row["ended_below"])

    async def id_at(self, position: int) -> str | None:
        first = audit_entry_prefix(position)
        row = await self._connections.fetchrow(self._sql.id_at, first, first + "g")
        return None if row is None else row["id"]

    async def page(
        self,
        filters: AuditFilters,
        *,
        limit: int,
        ascending: bool,
        above: str | None = None,
        below: str | None = None,
    ) -> tuple[list[RecordedAction], bool]:
        records = await self._connections.fetch(
            self._sql.page_up if ascending else self._sql.page_down,
            above or _FIRST,
            below or _LAST,
            limit + 1,
            filters.action,
            filters.actor,
            filters.target,
            filters.tenant,
            filters.outcome,
            filters.created_after,
            filters.created_before,
        )
        return [_parse(record) for record in records[:limit]], len(records) > limit

    async def count_old(self, before: datetime) -> int:
        row = await self._connections.fetchrow(self._sql.count_old, before)
        return 0 if row is None else row["count"]

    async def remove_old(self, before: datetime, limit: int) -> int:
        async with self._connections.transaction() as session:
            await session.fetchrow(self._sql.allow_removal)
            row = await session.fetchrow(self._sql.remove_old, before, limit)
        return 0 if row is None else row["count"]


def _json(value: JsonValue) -> str | None:
    return None if value is None else json.dumps(value)


def _parse(record: Row) -> RecordedAction:
    actor = AuditActor(
        source=record["source"],
        tenant=record["actor_tenant"],
        key_id=record["actor_key"],
        user=record["actor_user"],
        address=record["address"],
        request_id=record["request_id"],
    )
    target = AuditTarget(type=record["target_type"], id=record["target_id"], tenant=record["target_tenant"])
    entry = AuditEntry(
        created_at=record["created_at"],
        actor=actor,
        action=record["action"],
        target=target,
        before=_value(record["before"]),
    )
    if record["outcome"] is None:
        return RecordedAction(record["id"], entry, UNFINISHED)
    result = AuditResult(outcome=record["outcome"], code=record["code"], after=_value(record["after"]))
    return RecordedAction(record["id"], entry, result)


def _value(text: str | None) -> JsonValue:
    value: JsonValue = None if text is None else json.loads(text)
    return value
