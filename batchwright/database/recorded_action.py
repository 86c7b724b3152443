"""Records an action in the audit log: its beginning before anything changes, and its outcome afterwards."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from pydantic import JsonValue

from batchwright.contracts.api_objects.audit_log import AuditOutcome
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.operations.audit_log import AuditEntry, AuditLogTable, AuditResult

logger = logging.getLogger(__name__)


@asynccontextmanager
async def recorded(
    log: AuditLogTable,
    entry: AuditEntry,
    read_after: Callable[[], Awaitable[JsonValue]],
    code_of: Callable[[Exception], str | None],
) -> AsyncGenerator[None]:
    """Context manager that records an action in the audit log. The action is the code in the `with` block.

    The beginning of the action is recorded before the block runs, and the outcome after the block. The
    outcome in the log stays `unknown` in two cases:

    - The process ends during the block.
    - The database is unavailable after the block. The action is not undone, and no exception is raised for
      this.

    Args:
        read_after: called after a successful action. Returns the changed object for the audit log, without
            secrets; None if the object no longer exists.
        code_of: called with the exception that the block raised. Returns the error code if the exception
            means that the action was refused; None if the action failed in another way.

    Raises:
        DatabaseUnavailable: the beginning could not be recorded. The block did not run.
    """
    id = await log.begin(entry)
    try:
        yield
    except Exception as error:
        code = code_of(error)
        if code is None:
            result = AuditResult(outcome=AuditOutcome.FAILED, code=type(error).__name__)
        else:
            result = AuditResult(outcome=AuditOutcome.REFUSED, code=code)
        try:
            await log.finish(id, result)
        except DatabaseUnavailable as unavailable:
            _warn(id, entry, unavailable)
        raise
    try:
        await log.finish(id, AuditResult(outcome=AuditOutcome.OK, after=await read_after()))
    except DatabaseUnavailable as unavailable:
        _warn(id, entry, unavailable)


def _warn(id: str, entry: AuditEntry, error: DatabaseUnavailable) -> None:
    extra = {"entry": id, "action": entry.action.value, "error": str(error)}
    logger.warning("outcome of an action was not recorded in the audit log", extra=extra)
