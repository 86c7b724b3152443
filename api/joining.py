"""Completing an upload: its parts become one file, copied piece by piece in bounded memory."""

import asyncio
from datetime import timedelta
from hashlib import md5
from secrets import token_hex

from api.errors import invalid_value
from api.jsonl import FirstLine
from api.receiving import discard_object, expiry
from api.services import Services
from api.upload_bodies import Completion
from batchwright.database.errors import OutcomeUnknown
from batchwright.database.rows import FileRow
from batchwright.database.upload_rows import PartRow, UploadRow
from batchwright.rules import keys
from batchwright.rules.ids import new_file_id
from batchwright.storage.base import ObjectWriter


async def join(upload: UploadRow, completion: Completion, services: Services) -> UploadRow:
    """The upload's row after it, which another completion or a cancel may have changed first.

    Raises:
        ApiError: the parts are not what the client said; the upload stays as it is.
        ObjectMissing: a part was swept meanwhile.
    """
    parts = await _parts(upload, completion, services)
    file = _file(upload, services)
    async with services.storage.writer(file.storage_key) as writer:
        joined = _Joined(upload, services.settings.max_line_bytes)
        for part in parts:
            async for piece in services.storage.read(part.storage_key):
                await joined.take(piece, writer)
        joined.finish(completion.md5)
    try:
        row = await services.database.uploads.complete(upload, file, completion.digest)
    except OutcomeUnknown:  # the file may be there; if it is not, retention takes the object for an orphan
        raise
    except Exception:
        await discard_object(file.storage_key, services)
        raise
    if row.file_id != file.id:
        await discard_object(file.storage_key, services)
    return row


async def _parts(upload: UploadRow, completion: Completion, services: Services) -> list[PartRow]:
    """In the order asked for, and together as large as the upload was announced."""
    found = await services.database.uploads.parts(upload.tenant, upload.id, completion.part_ids)
    for part_id in completion.part_ids:
        if part_id not in found:
            raise invalid_value("part_ids", f"Invalid 'part_ids': the upload has no part '{part_id}'.")
    parts = [found[part_id] for part_id in completion.part_ids]
    total = sum(part.bytes for part in parts)
    if total != upload.bytes:
        message = f"The parts have {total} bytes together, but the upload was announced with {upload.bytes}."
        raise invalid_value("part_ids", message)
    return parts


def _file(upload: UploadRow, services: Services) -> FileRow:
    now, file_id, seconds = services.clock(), new_file_id(), upload.expires_after_seconds
    life = None if seconds is None else timedelta(seconds=seconds)
    return FileRow(
        id=file_id,
        tenant=upload.tenant,
        purpose=upload.purpose,
        filename=upload.filename,
        bytes=upload.bytes,
        created_at=now,
        expires_at=expiry(upload.purpose, life, now),
        storage_key=keys.upload_key(upload.tenant, file_id, token_hex(8)),
    )


class _Joined:
    """What the parts make together, checked while it is copied."""

    def __init__(self, upload: UploadRow, max_line_bytes: int) -> None:
        self._digest = md5(usedforsecurity=False)
        self._first = FirstLine(max_line_bytes) if upload.purpose == "batch" else None

    async def take(self, piece: bytes, writer: ObjectWriter) -> None:
        if self._first is not None:
            self._first.feed(piece)
            self._first.check()
        await asyncio.to_thread(self._digest.update, piece)  # of 8 GB it takes seconds
        await writer.write(piece)

    def finish(self, expected: str | None) -> None:
        if self._first is not None:
            self._first.finish()
        found = self._digest.hexdigest()
        if expected not in (None, found):
            raise invalid_value("md5", f"The MD5 of the parts is {found}, not {expected}.")
