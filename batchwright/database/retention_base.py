"""What retention asks of the database: over all tenants, unless one is named."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from batchwright.contracts.retention import Kind, Place
from batchwright.database.rows import BatchRow, FileRow


class Ended(NamedTuple):
    """A batch or an upload, and since when nothing happens to it."""

    tenant: str
    id: str
    ended_at: datetime


class Mark(NamedTuple):
    """Tells this database from all others; `marked_at` is when its storage was told."""

    id: str
    marked_at: datetime | None


class RetentionTable(Protocol):
    """Pages come oldest first and go on after a place. A `remove_` that finds nothing returns False.

    All raise DatabaseUnavailable; a retry of any is safe, and so are several at once.
    """

    async def expired_files(self, before: datetime, after: Place, limit: int) -> list[FileRow]:
        """Without those that a live batch reads, or one that ended after `before` did."""
        ...

    async def remove_file(self, row: FileRow) -> bool:
        """Unless a live batch reads it, or its object is another now."""
        ...

    async def ended_batches(self, before: datetime, after: Place, limit: int) -> list[Ended]:
        """Those whose objects nobody has cleared since they ended."""
        ...

    async def batch_swept(self, batch: Ended, at: datetime) -> bool:
        """Its objects are gone: what workers told of it goes too."""
        ...

    async def old_batches(self, before: datetime, after: Place, limit: int) -> list[Ended]:
        """Cleared ones without any file of theirs left."""
        ...

    async def remove_batch(self, batch: Ended) -> bool: ...

    async def old_uploads(self, before: datetime, after: Place, limit: int) -> list[Ended]:
        """Swept ones, by expiry."""
        ...

    async def remove_upload(self, upload: Ended) -> bool: ...

    async def count_keys(self, before: datetime) -> int:
        """Idempotency keys made by then."""
        ...

    async def remove_keys(self, before: datetime, limit: int) -> int:
        """At most `limit` of them; how many."""
        ...

    async def tenants(self, after: str, limit: int) -> list[str]:
        """By name: whoever has a file, a batch or an upload."""
        ...

    async def keys_of(self, tenant: str, ids: Sequence[str]) -> dict[str, str]:
        """Storage keys of files by id, of expired ones too."""
        ...

    async def open_uploads(self, tenant: str, ids: Sequence[str]) -> frozenset[str]:
        """Those of `ids` whose parts are not swept yet."""
        ...

    async def live_batches(self, tenant: str) -> frozenset[str]: ...

    async def miscounted(self) -> list[BatchRow]:
        """Ended batches with files whose counts are not their lines: at most a thousand."""
        ...

    async def settled_files(
        self, tenant: str, after: str, before: datetime, now: datetime, limit: int
    ) -> list[FileRow]:
        """By id: those created before, and not expired."""
        ...

    async def note_success(self, kind: Kind, at: datetime) -> None: ...

    async def successes(self) -> dict[str, datetime]:
        """By kind; of one that never succeeded, when the table was made."""
        ...

    async def mark(self) -> Mark: ...

    async def note_mark(self, at: datetime) -> None:
        """The storage has been told; the first time stays."""
        ...
