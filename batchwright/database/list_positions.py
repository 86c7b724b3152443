"""Finds the position in a list after which a page begins. The lists are sorted by creation time and id."""

from datetime import UTC, datetime

from batchwright.database.driver import Session
from batchwright.database.errors import UnknownCursor

FIRST_POSITION = (datetime.min.replace(tzinfo=UTC), "")
LAST_POSITION = (datetime.max.replace(tzinfo=UTC), "")


async def position_of(session: Session, sql: str, tenant: str, after: str) -> tuple[datetime, str]:
    """Return the position of an object in a list: its creation time and its id.

    `after` is the id. `sql` is a query that returns the creation time of an object by tenant and id. Raises
    UnknownCursor if the object does not exist.
    """
    row = await session.fetchrow(sql, tenant, after) if after.isprintable() else None
    if row is None:
        raise UnknownCursor(after)
    return row["created_at"], after
