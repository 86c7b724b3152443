"""Fake tables of the audit log, in memory. They pass the tests of the PostgreSQL tables."""

import secrets
from datetime import datetime, timedelta

from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.database.tables.operations.audit_log import (
    UNFINISHED,
    AuditEntry,
    AuditFilters,
    AuditLogExtent,
    AuditLogTable,
    AuditResult,
    RecordedAction,
)
from batchwright.rules.ids import audit_entry_position
from tests.fakes.tables.rows import Rows


class MemoryAuditLog(AuditLogTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def begin(self, entry: AuditEntry) -> str:
        if "\0" in entry.target.id + (entry.target.tenant or ""):
            raise ValueError("PostgreSQL stores no NUL")
        self._rows.enter().audit_log_position += 1
        id = f"act_{self._rows.audit_log_position:016x}{secrets.token_hex(8)}"
        self._rows.audit_log[id] = RecordedAction(id, entry, UNFINISHED)
        return id

    async def finish(self, id: str, result: AuditResult) -> None:
        action = self._rows.enter().audit_log[id]
        if action.result is UNFINISHED:
            self._rows.audit_log[id] = action._replace(result=result)

    async def extent(self, running_since: datetime) -> AuditLogExtent:
        actions = self._rows.enter().audit_log.values()
        running = [
            action.id
            for action in actions
            if action.result is UNFINISHED
            and action.entry.created_at > _began_after(action.entry, running_since)
        ]
        oldest = min((audit_entry_position(action.id) for action in actions), default=None)
        latest = self._rows.audit_log_position
        return AuditLogExtent(latest, oldest, min(running, default=f"act_{latest + 1:016x}"))

    async def id_at(self, position: int) -> str | None:
        ids = self._rows.enter().audit_log
        return next((id for id in ids if audit_entry_position(id) == position), None)

    async def page(
        self,
        filters: AuditFilters,
        *,
        limit: int,
        ascending: bool,
        above: str | None = None,
        below: str | None = None,
    ) -> tuple[list[RecordedAction], bool]:
        actions = [action for action in self._rows.enter().audit_log.values() if _matches(action, filters)]
        actions = [action for action in actions if (above or "") < action.id < (below or "b")]
        actions.sort(key=lambda action: action.id, reverse=not ascending)
        return actions[:limit], len(actions) > limit

    async def count_old(self, before: datetime) -> int:
        return len(self._old(before))

    async def remove_old(self, before: datetime, limit: int) -> int:
        old = self._old(before)[:limit]
        for id in old:
            del self._rows.audit_log[id]
        return len(old)

    def _old(self, before: datetime) -> list[str]:
        began = {id: action.entry.created_at for id, action in self._rows.enter().audit_log.items()}
        return [id for id in sorted(began, key=began.__getitem__) if began[id] <= before]


def _matches(action: RecordedAction, filters: AuditFilters) -> bool:
    entry = action.entry
    actor = (entry.actor.tenant, entry.actor.key_id, entry.actor.user)
    return (
        filters.action in (None, entry.action)
        and (filters.actor is None or filters.actor in actor)
        and filters.target in (None, entry.target.id)
        and filters.tenant in (None, entry.target.tenant)
        and filters.outcome in (None, action.result.outcome)
        and (filters.created_after is None or entry.created_at >= filters.created_after)
        and (filters.created_before is None or entry.created_at < filters.created_before)
    )


def _began_after(entry: AuditEntry, running_since: datetime) -> datetime:
    """Return the time after which this action must have begun if it may still be running.

    Repairs of the consistency check may run for a day longer than all other actions.
    """
    is_long = entry.action is AuditAction.CONSISTENCY_REPAIR
    return running_since - timedelta(days=1) if is_long else running_since
