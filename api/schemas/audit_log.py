"""Builds the objects that /admin/audit-log returns from the entries in the database."""

from batchwright.contracts.api_objects.audit_log import (
    AuditActorObject,
    AuditEntryObject,
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
