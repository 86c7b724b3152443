"""Decide which database rows and stored objects may be deleted, and how old they must be."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from batchwright.contracts.calls import ANSWER_LIFETIME
from batchwright.rules.ids import derived_file_id

# No writer takes this long. An object that is still unfinished or unreferenced will stay so.
MAX_WRITE_TIME = timedelta(days=1)
INPUT_FILE_LIFETIME = timedelta(days=30)  # of batches' inputs, if the client requests no other
# Of the row of an ended batch that collected single calls, as in the query `old_batches`.
ROLLING_ROW_LIFETIME = timedelta(days=2)
IDEMPOTENCY_KEY_LIFETIME = timedelta(hours=24)
WEBHOOK_DELIVERY_LIFETIME = timedelta(days=30)
OUTPUT_KINDS = ("output", "error")


@dataclass(frozen=True)
class RetentionCutoffs:
    """The points in time before which data are old enough to be deleted. Each kind of data has one field.

    For example, a batch may be deleted if it ended before `batches`. For other kinds of data, the time of
    creation, of expiry or of the last change is compared. All points in time stay the same during one run of
    the deletion.
    """

    files: datetime  # compared with the expiry, and with the end of the last batch that read the file
    uploads: datetime  # compared with the expiry, after which a completion may still copy parts
    batches: datetime  # compared with the end, after which a frozen worker may still have written
    metadata: datetime  # compared with the end
    keys: datetime  # compared with the creation
    calls: datetime  # compared with the end, or with the creation of a call that was never accepted
    webhooks: datetime  # compared with the creation; far longer than a delivery may take
    audit_log: datetime  # compared with the creation
    orphans: datetime  # compared with the last change of the object, or the creation of the row


def retention_cutoffs(
    now: datetime, *, grace: timedelta, metadata: timedelta, audit_log: timedelta, orphans: timedelta
) -> RetentionCutoffs:
    return RetentionCutoffs(
        files=now - grace,
        uploads=now - grace,
        batches=now - MAX_WRITE_TIME,
        metadata=now - max(metadata, MAX_WRITE_TIME),
        keys=now - IDEMPOTENCY_KEY_LIFETIME,
        calls=now - ANSWER_LIFETIME,
        webhooks=now - WEBHOOK_DELIVERY_LIFETIME,
        audit_log=now - audit_log,
        orphans=now - max(orphans, MAX_WRITE_TIME),
    )


class TenantFolder(StrEnum):
    """Top-level folders of one tenant in the object storage."""

    FILES = "files"
    UPLOADS = "uploads"
    BATCHES = "batches"


class ObjectOwner(NamedTuple):
    """The file, upload or batch to which a stored object belongs. The owner is read from the object's key.

    Attributes:
        area: kind of the owner (files, uploads or batches).
        id: id of the owner.
    """

    area: TenantFolder
    id: str


def owner_of(key: str) -> ObjectOwner | None:
    """Return the file, upload or batch to which a stored object belongs; None if the key has an unknown form.

    Batchwright never writes keys of an unknown form, so it never deletes objects with such keys.
    """
    parts = key.split("/")
    if len(parts) < 4 or parts[1] not in list(TenantFolder) or not all(parts):
        return None
    return ObjectOwner(TenantFolder(parts[1]), parts[2])


class WrittenObject(NamedTuple):
    """A stored object's key and the time of its last change."""

    key: str
    at: datetime


@dataclass(frozen=True)
class KnownObjects:
    """A tenant's files, open uploads and live batches in the database.

    A stored object that belongs to none of them may be an orphan (`orphaned_keys`).
    """

    files: Mapping[str, str]  # object keys by file id
    open_uploads: Set[str]  # ids of uploads whose parts are not deleted yet
    live_batches: Set[str]  # ids


def orphaned_keys(objects: Iterable[WrittenObject], known: KnownObjects, before: datetime) -> list[str]:
    """Return the keys of old objects that may be deleted, because no database row refers to these objects.

    Two kinds of objects are never returned: objects that a live batch may still be writing, and objects whose
    key has an unknown form.

    Args:
        objects: stored objects of one tenant.
        known: the tenant's files, open uploads and live batches in the database.
        before: an object is old if its last change was before this time.
    """
    spared = {derived_file_id(batch, kind) for batch in known.live_batches for kind in OUTPUT_KINDS}
    return [
        found.key for found in objects if found.at < before and not _is_referenced(found.key, known, spared)
    ]


def _is_referenced(key: str, known: KnownObjects, spared: Set[str]) -> bool:
    owner = owner_of(key)
    if owner is None:
        return True
    match owner.area:
        case TenantFolder.FILES:
            return known.files.get(owner.id) == key or owner.id in spared
        case TenantFolder.UPLOADS:
            return owner.id in known.open_uploads
        case TenantFolder.BATCHES:
            return owner.id in known.live_batches
