"""Builds the objects that /admin/audit-log returns."""

from collections.abc import Sequence

from batchwright.contracts.api_objects.audit_log import (
    AuditActorObject,
    AuditEntryObject,
    AuditLogPage,
    AuditTargetObject,
)
from batchwright.database.tables.operations.audit_log import RecordedAction


def audit_entry_object(action: RecordedAction) -> AuditEntryObject:
    id, entry, result = action
    actor, target = entry.actor, entry.target
    return AuditEntryObject(
        id=id,
        created_at=int(entry.created_at.timestamp()),
        source=actor.source,
        actor=AuditActorObject(
            tenant=actor.tenant or None,
            key_id=actor.key_id or None,
            user=actor.user or None,
            address=actor.address or None,
        ),
        request_id=actor.request_id or None,
        action=entry.action,
        target=AuditTargetObject(type=target.type, id=target.id or None, tenant=target.tenant or None),
        before=entry.before,
        after=result.after,
        outcome=result.outcome,
        code=result.code or None,
    )


def audit_log_page(actions: Sequence[RecordedAction], *, more: bool) -> AuditLogPage:
    """Return one page of the audit log. `more` is True if another page follows."""
    data = [audit_entry_object(action) for action in actions]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return AuditLogPage(data=data, first_id=first, last_id=last, has_more=more)
