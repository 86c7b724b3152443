"""Fake tables of the audit log, in memory. They pass the tests of the PostgreSQL tables."""

from datetime import datetime

from batchwright.database.tables.audit_log import (
    UNFINISHED,
    AuditEntry,
    AuditFilters,
    AuditLogTable,
    AuditResult,
    RecordedAct,
)
from tests.fakes.tables.rows import Rows, position


class MemoryAuditLog(AuditLogTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def begin(self, entry: AuditEntry) -> None:
        if "\0" in entry.target.id + (entry.target.tenant or ""):
            raise ValueError("PostgreSQL stores no NUL")
        self._rows.enter().audit_log.setdefault(entry.id, RecordedAct(entry, UNFINISHED))

    async def finish(self, id: str, result: AuditResult) -> None:
        act = self._rows.enter().audit_log[id]
        if act.result is UNFINISHED:
            self._rows.audit_log[id] = RecordedAct(act.entry, result)

    async def page(
        self, filters: AuditFilters, *, limit: int, ascending: bool, after: str | None
    ) -> tuple[list[RecordedAct], bool]:
        acts = sorted(
            self._rows.enter().audit_log.values(),
            key=lambda act: (act.entry.created_at, act.entry.id),
            reverse=not ascending,
        )
        acts = acts[position([act.entry.id for act in acts], after) :]
        acts = [act for act in acts if _matches(act, filters)]
        return acts[:limit], len(acts) > limit

    async def count_old(self, before: datetime) -> int:
        return len(self._old(before))

    async def remove_old(self, before: datetime, limit: int) -> int:
        old = self._old(before)[:limit]
        for id in old:
            del self._rows.audit_log[id]
        return len(old)

    def _old(self, before: datetime) -> list[str]:
        return [id for id, act in self._rows.enter().audit_log.items() if act.entry.created_at <= before]


def _matches(act: RecordedAct, filters: AuditFilters) -> bool:
    entry = act.entry
    actor = (entry.actor.tenant, entry.actor.key_id, entry.actor.user)
    return (
        filters.action in (None, entry.action)
        and (filters.actor is None or filters.actor in actor)
        and filters.target in (None, entry.target.id)
        and filters.tenant in (None, entry.target.tenant)
        and filters.outcome in (None, act.result.outcome)
        and (filters.created_after is None or entry.created_at >= filters.created_after)
        and (filters.created_before is None or entry.created_at < filters.created_before)
    )
