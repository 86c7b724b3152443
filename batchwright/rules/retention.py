"""What may be deleted, and since when: decisions only."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from batchwright.rules.ids import derived_file_id

# No writer takes that long: what it has not finished or named by then, it never will.
WRITER = timedelta(days=1)
KEYS_KEPT = timedelta(hours=24)
OUTPUTS = ("output", "error")


@dataclass(frozen=True)
class Horizons:
    """Of one run: what is older than each may go."""

    files: datetime  # expiry, and the end of whatever batch read it last
    uploads: datetime  # expiry: a completion that began in time may still be copying parts
    batches: datetime  # end: a worker that was frozen may still have written
    metadata: datetime  # end
    keys: datetime  # creation
    orphans: datetime  # last change of the object, or creation of the row


def horizons(now: datetime, *, grace: timedelta, metadata: timedelta, orphans: timedelta) -> Horizons:
    return Horizons(
        files=now - grace,
        uploads=now - grace,
        batches=now - WRITER,
        metadata=now - max(metadata, WRITER),
        keys=now - KEYS_KEPT,
        orphans=now - max(orphans, WRITER),
    )


class Area(StrEnum):
    """The folders of a tenant."""

    FILES = "files"
    UPLOADS = "uploads"
    BATCHES = "batches"


class Owner(NamedTuple):
    """Whose an object is, by its key."""

    area: Area
    id: str


def owner_of(key: str) -> Owner | None:
    """None for a key that none of ours looks like: it stays."""
    parts = key.split("/")
    if len(parts) < 4 or parts[1] not in list(Area) or not all(parts):
        return None
    return Owner(Area(parts[1]), parts[2])


class Written(NamedTuple):
    key: str
    at: datetime


@dataclass(frozen=True)
class Known:
    """What a tenant's rows say of some objects."""

    files: Mapping[str, str]  # keys of the objects by the files' ids
    open_uploads: Set[str]  # ids of those that are not swept yet
    live_batches: Set[str]  # ids


def orphans(objects: Iterable[Written], known: Known, before: datetime) -> list[str]:
    """Keys of those objects, written before, that no row names and no live batch may be writing."""
    spared = {derived_file_id(batch, kind) for batch in known.live_batches for kind in OUTPUTS}
    return [found.key for found in objects if found.at < before and not _is_named(found.key, known, spared)]


def _is_named(key: str, known: Known, spared: Set[str]) -> bool:
    owner = owner_of(key)
    if owner is None:
        return True
    match owner.area:
        case Area.FILES:
            return known.files.get(owner.id) == key or owner.id in spared
        case Area.UPLOADS:
            return owner.id in known.open_uploads
        case Area.BATCHES:
            return owner.id in known.live_batches
