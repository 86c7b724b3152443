"""Whether storage and database belong together: an object in the one says what a row of the other says."""

from datetime import datetime

from activities.errors import failure
from batchwright.contracts.errors import Failure
from batchwright.database.base import DatabaseLike
from batchwright.database.retention_base import Mark
from batchwright.rules import keys
from batchwright.storage.base import ObjectMissing, Storage


async def check(database: DatabaseLike, storage: Storage, now: datetime, *, dry_run: bool = False) -> None:
    """The first time, marks the storage.

    Raises ApplicationError Failure.FOREIGN_STORAGE, which is not retried: another database has marked it, or
    nobody has though ours had.
    """
    mark = await database.retention.mark()
    try:
        found = (await storage.get(keys.DATABASE_MARK)).decode(errors="replace")
    except ObjectMissing:
        if mark.marked_at is not None:
            raise failure(Failure.FOREIGN_STORAGE, _missing(mark)) from None
        if dry_run:
            return
        await storage.put(keys.DATABASE_MARK, mark.id.encode())
        found = mark.id
    if found != mark.id:
        raise failure(
            Failure.FOREIGN_STORAGE,
            f"The storage belongs to the database {found!r}, not to this one ({mark.id!r}): rows and "
            "objects are not compared. Check BATCHWRIGHT_DATABASE_URL and the storage's settings; if both "
            "are right, run `batchwright retention adopt`.",
        )
    if mark.marked_at is None and not dry_run:
        await database.retention.note_mark(now)


async def adopt(database: DatabaseLike, storage: Storage, now: datetime) -> None:
    """The storage belongs to this database from now on, whoever's it was."""
    mark = await database.retention.mark()
    await storage.put(keys.DATABASE_MARK, mark.id.encode())
    await database.retention.note_mark(now)


def _missing(mark: Mark) -> str:
    return (
        f"The storage has lost {keys.DATABASE_MARK!r}, which retention put there on "
        f"{mark.marked_at:%Y-%m-%d}, or is another one: rows and objects are not compared. Check the "
        "storage's settings and its content; if all is well, run `batchwright retention adopt`."
    )
