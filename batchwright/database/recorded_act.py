"""Records an act in the audit log: that it begins before anything is changed, and its outcome afterwards."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from pydantic import JsonValue

from batchwright.contracts.audit_log import AuditOutcome
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.audit_log import AuditEntry, AuditLogTable, AuditResult

logger = logging.getLogger(__name__)


@asynccontextmanager
async def recorded(
    log: AuditLogTable,
    entry: AuditEntry,
    read_after: Callable[[], Awaitable[JsonValue]],
    code_of: Callable[[Exception], str | None],
) -> AsyncGenerator[None]:
    """Context manager around an act. If the beginning cannot be recorded, the act does not happen.

    If the process ends during the act, or the outcome cannot be recorded, the outcome stays `unknown`. If the
    act succeeds but its outcome cannot be recorded, the act is not undone, and its caller gets no error.

    Args:
        read_after: returns the target after a successful act, without secrets; None if there is none.
        code_of: returns the reason if an exception of the act means that it was refused; None if it failed.

    Raises:
        DatabaseUnavailable: the beginning could not be recorded.
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
    logger.warning("outcome of an act was not recorded in the audit log", extra=extra)
