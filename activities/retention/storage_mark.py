"""The storage mark: an object in the storage that names the database to which the storage belongs."""

from datetime import datetime

from batchwright.activities.errors import failure
from batchwright.contracts.errors import Failure
from batchwright.database.database import Database
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import ObjectMissing, Storage


async def check_storage_mark(database: Database, storage: Storage, now: datetime, *, dry_run: bool) -> None:
    """Check that the storage belongs to this database, before anything is deleted from it.

    The storage contains a mark, an object with the id of its database. If this database has never recorded a
    mark and the storage contains no mark, the mark is written.

    Args:
        dry_run: True to write nothing.

    Raises:
        ApplicationError (FOREIGN_STORAGE): the mark names another database, or this database has recorded a
            mark that the storage does not contain. The activity is not retried.
    """
    mark = await database.retention.mark()
    try:
        found = (await storage.get(object_keys.DATABASE_MARK)).decode(errors="replace")
    except ObjectMissing:
        if mark.marked_at is not None:
            raise failure(
                Failure.FOREIGN_STORAGE,
                f"The storage has lost {object_keys.DATABASE_MARK!r}, which retention put there on "
                f"{mark.marked_at:%Y-%m-%d}, or is another one: rows and objects are not compared. Check the "
                "storage's settings and its content; if all is well, run `batchwright retention adopt`.",
            ) from None
        if dry_run:
            return
        await storage.put(object_keys.DATABASE_MARK, mark.id.encode())
        found = mark.id
    if found != mark.id:
        raise failure(
            Failure.FOREIGN_STORAGE,
            f"The storage belongs to the database {found!r}, not to this one ({mark.id!r}): rows and "
            "objects are not compared. Check BATCHWRIGHT_DATABASE_URL and the storage's settings; if both "
            "are right, run `batchwright retention adopt`.",
        )
    if mark.marked_at is None and not dry_run:
        await database.retention.record_mark(now)


async def adopt_storage(database: Database, storage: Storage, now: datetime) -> None:
    """Mark the storage as belonging to this database, even if it belonged to another database."""
    mark = await database.retention.mark()
    await storage.put(object_keys.DATABASE_MARK, mark.id.encode())
    await database.retention.record_mark(now)
