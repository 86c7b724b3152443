"""Records commands that change the database directly, without the API, in the audit log."""

import getpass
import os
import socket
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import JsonValue

from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.database.database import Database
from batchwright.database.errors import (
    InOtherOrganization,
    UnknownApiKey,
    UnknownBudgetGroup,
    UnknownTenant,
)
from batchwright.database.recorded_action import recorded
from batchwright.database.tables.operations.audit_log import AuditActor, AuditEntry, AuditTarget

_Result = TypeVar("_Result")


class CommandRefused(Exception):
    """A command is not possible, although the database is available. Nothing was changed.

    The message is for the user. `code` is the reason in the audit log.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


# The database is available, but rejects the operation. With the reason in the audit log.
REFUSALS: dict[type[Exception], str] = {
    UnknownTenant: "tenant_not_found",
    UnknownBudgetGroup: "budget_group_not_found",
    UnknownApiKey: "key_not_found",
    InOtherOrganization: "in_other_organization",
}


async def recorded_command(
    database: Database,
    action: AuditAction,
    target: AuditTarget,
    read: Callable[[], Awaitable[JsonValue]],
    change: Callable[[], Awaitable[_Result]],
) -> _Result:
    """Make a change with `change`, record it in the audit log, and return the result of `change`.

    The actor in the audit log is the name of the system user.

    Args:
        read: function that returns the state of the target without secrets, or None if the target does not
            exist. It is called before and after the change.
        change: function that makes the change. If the change is not possible, it raises CommandRefused or
            one of the exceptions in REFUSALS.

    Raises:
        DatabaseUnavailable: the change could not be recorded, and was not made.
    """
    entry = AuditEntry(
        created_at=datetime.now(UTC),
        actor=AuditActor(source="cli", user=_user(), address=socket.gethostname()),
        action=action,
        target=target,
        before=await read(),
    )
    async with recorded(database.audit_log, entry, read, _refusal_code):
        return await change()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run with a user id that has no name
        return f"uid {os.getuid()}"


def _refusal_code(error: Exception) -> str | None:
    return error.code if isinstance(error, CommandRefused) else REFUSALS.get(type(error))
