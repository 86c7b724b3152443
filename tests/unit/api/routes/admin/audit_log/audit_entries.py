"""Entries of the audit log, read over the API."""

from batchwright.contracts.api_objects.audit_log import (
    AuditEntryObject,
    AuditLogPage,
    AuditOutcome,
)
from batchwright.rules.tenants.api_keys import ApiKey
from tests.fakes.api import ApiFixture, read


async def entries(api: ApiFixture, key: ApiKey | None = None, **query: str) -> list[AuditEntryObject]:
    """Return the recorded actions, oldest first."""
    headers = {} if key is None else {"Authorization": f"Bearer {key.text}"}
    page = await api.http.get("/admin/audit-log", params={**query, "order": "asc"}, headers=headers)
    return read(page, AuditLogPage).data


def states(entry: AuditEntryObject) -> tuple[object, object, AuditOutcome, str | None]:
    return entry.before, entry.after, entry.outcome, entry.code
