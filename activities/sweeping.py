"""What nobody came back for: uploads past their time, and idempotency keys past their day."""

import logging
from datetime import datetime, timedelta
from typing import NamedTuple

from batchwright.database.base import DatabaseLike
from batchwright.database.upload_rows import UploadRow
from batchwright.rules import keys
from batchwright.storage.base import Storage

logger = logging.getLogger(__name__)

# A completion that began in time may still be copying parts when the upload expires.
_MARGIN = timedelta(hours=1)
_KEYS_KEPT = timedelta(hours=24)
_AT_ONCE = 100


class Swept(NamedTuple):
    uploads: int
    objects: int
    keys: int


async def sweep_requests(database: DatabaseLike, storage: Storage, now: datetime) -> Swept:
    """Deletes what expired uploads left in storage, marks those that were pending expired, forgets old keys.

    Whatever an upload became, its parts are gone an hour after its time. A repeat changes nothing; several
    at once do no harm.

    Raises:
        StorageUnavailable, DatabaseUnavailable: what was swept stays swept; the next sweep goes on.
    """
    uploads = objects = 0
    while rows := await database.uploads.unswept(now - _MARGIN, _AT_ONCE):
        for row in rows:
            objects += await _sweep(row, database, storage, now)
        uploads += len(rows)
    swept = Swept(uploads, objects, await database.claims.forget(now - _KEYS_KEPT))
    logger.info("requests swept", extra=swept._asdict())
    return swept


async def _sweep(row: UploadRow, database: DatabaseLike, storage: Storage, now: datetime) -> int:
    deleted = await storage.delete_prefix(keys.parts_root(row.tenant, row.id))
    await database.uploads.swept(row, now)
    return deleted
