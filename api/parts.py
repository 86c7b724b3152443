"""A part of an upload on its way in: one object each, so that parts may come in parallel and in any order."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from api.errors import invalid_value, missing, unknown_parameter
from api.forms import FileStart, Piece, read_form
from api.receiving import discard_object, too_large
from api.services import Services
from api.upload_bodies import MAX_PARTS
from batchwright.database.errors import OutcomeUnknown
from batchwright.database.upload_rows import PartRow, UploadRow
from batchwright.rules import keys
from batchwright.rules.ids import new_part_id
from batchwright.storage.base import ObjectWriter


async def store_part(
    upload: UploadRow, content_type: str, body: AsyncIterator[bytes], services: Services
) -> PartRow:
    """Writes the form's `data` to storage and its row to the database; on an error neither stays, or both do.

    Raises:
        ApiError: what the client did wrong.
        UnknownUpload, UploadClosed, UploadFull: the upload takes it no more.
    """
    part_id = new_part_id()
    key = keys.part_key(upload.tenant, upload.id, part_id)
    async with services.storage.writer(key) as writer:
        data = _Data(services.settings.max_part_bytes)
        async with aclosing(read_form(content_type, body, "data")) as pieces:
            async for piece in pieces:
                await data.take(piece, writer)
        size = data.finish()
    now = services.clock()
    part = PartRow(
        id=part_id, tenant=upload.tenant, upload_id=upload.id, bytes=size, storage_key=key, created_at=now
    )
    try:
        most = services.settings.max_upload_bytes
        await services.database.uploads.add_part(part, at=now, most_bytes=most, most_parts=MAX_PARTS)
    except OutcomeUnknown:  # the row may be there; if it is not, the object goes with the upload
        raise
    except Exception:
        await discard_object(key, services)
        raise
    return part


class _Data:
    """The form's one file."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes: int | None = None

    async def take(self, piece: Piece, writer: ObjectWriter) -> None:
        if isinstance(piece, bytes):
            self._bytes = (self._bytes or 0) + len(piece)
            if self._bytes > self._limit:
                raise too_large(self._limit, "data")
            await writer.write(piece)
            return
        if piece.name != "data" or not isinstance(piece, FileStart):
            raise unknown_parameter(piece.name)
        if self._bytes is not None:
            raise invalid_value("data", "The form field 'data' is given twice.")
        self._bytes = 0

    def finish(self) -> int:
        """How many bytes there were."""
        if self._bytes is None:
            raise missing("data")
        return self._bytes
