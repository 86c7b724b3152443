"""Uploads with their parts, and the idempotency keys of what is made once, as tables of a database.

All methods raise DatabaseUnavailable when the database cannot answer.
"""

from datetime import datetime
from typing import Protocol

from batchwright.contracts.retention import START, Place
from batchwright.database.rows import FileRow
from batchwright.database.upload_rows import Claim, PartRow, UploadRow


class UploadsTable(Protocol):
    """Uploads and their parts. Only a pending upload changes, and one after another."""

    async def insert(self, row: UploadRow) -> None:
        """A second insert of the same row changes nothing."""
        ...

    async def get(self, tenant: str, upload_id: str) -> UploadRow | None: ...

    async def add_part(self, part: PartRow, *, at: datetime, most_bytes: int, most_parts: int) -> None:
        """Raises UnknownUpload; UploadClosed unless it is pending at `at`; UploadFull beyond the limits."""
        ...

    async def parts(self, tenant: str, upload_id: str, ids: list[str]) -> dict[str, PartRow]:
        """Those of `ids` that are there, by id."""
        ...

    async def complete(self, upload: UploadRow, file: FileRow, completion: str) -> UploadRow:
        """pending -> completed with its file's row and without its parts', all or nothing.

        A row that is not pending stays as it is and is returned. Raises UnknownUpload.
        """
        ...

    async def cancel(self, tenant: str, upload_id: str, at: datetime) -> UploadRow | None:
        """pending -> cancelled without its parts' rows, unless it has expired at `at`; the row as it is."""
        ...

    async def unswept(self, before: datetime, limit: int, after: Place = START) -> list[UploadRow]:
        """Of all tenants, the oldest first: what has expired at `before` and may have objects left."""
        ...

    async def swept(self, upload: UploadRow, at: datetime) -> None:
        """Its objects are gone: a pending one is expired now. A repeat changes nothing but the time."""
        ...


class ClaimsTable(Protocol):
    """Idempotency keys; one that is not younger than `since` counts as absent."""

    async def find(self, tenant: str, operation: str, key: str, since: datetime) -> Claim | None: ...

    async def claim(
        self, claim: Claim, since: datetime, row: FileRow | UploadRow | None = None
    ) -> Claim | None:
        """Takes the key and inserts `row` with it, all or nothing: None. Or the claim that has it."""
        ...
