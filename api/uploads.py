"""A file on its way in: checked while it streams to storage, gone without a trace where it is refused."""

import logging
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from secrets import token_hex
from typing import get_args

from api.creation import check_expiry
from api.errors import ApiError, invalid_value, missing, unknown_parameter, wrong_type_of
from api.forms import Field, FileStart, Piece, read_form
from api.services import Services
from batchwright.database.rows import FileRow, Purpose
from batchwright.rules import keys
from batchwright.rules.ids import new_file_id
from batchwright.rules.lines import Line, Splitter, is_json
from batchwright.settings import Settings
from batchwright.storage.base import ObjectWriter, StorageError

logger = logging.getLogger(__name__)

_PURPOSES: dict[str, Purpose] = {
    purpose: purpose for purpose in get_args(Purpose) if purpose != "batch_output"
}
_BATCH_FILE_LIFE = timedelta(days=30)
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = ("purpose", _ANCHOR, _SECONDS)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MAX_NAME_CHARACTERS = 255


class Upload:
    """One `POST /v1/files`: feed it the form's pieces, then ask for the row."""

    def __init__(self, tenant: str, settings: Settings) -> None:
        self._tenant = tenant
        self._settings = settings
        self._fields: dict[str, str] = {}
        self._purpose: Purpose | None = None
        self._filename: str | None = None
        self._bytes = 0
        self._splitter = Splitter(settings.max_line_bytes)
        self._first: Line | None = None
        self._file_id = new_file_id()
        self.key = keys.upload_key(tenant, self._file_id, token_hex(8))

    async def take(self, piece: Piece, writer: ObjectWriter) -> None:
        """Raises ApiError as soon as the upload cannot succeed any more."""
        match piece:
            case Field(name, value):
                self._take_field(name, value)
            case FileStart(name, filename):
                self._take_file(name, filename)
            case _:
                self._check(piece)
                await writer.write(piece)

    def row(self, services: Services) -> FileRow:
        """The whole file's row. Raises ApiError where something is missing or wrong."""
        if self._filename is None:
            raise missing("file")
        if self._purpose is None:
            raise missing("purpose")
        self._check_size()
        if self._purpose == "batch":
            self._first = self._first or next(self._splitter.finish(), None)
            self._check_first()
            if not self._bytes:
                raise _not_jsonl()
        now = services.clock()
        life = self._life()
        return FileRow(
            id=self._file_id,
            tenant=self._tenant,
            purpose=self._purpose,
            filename=_clean(self._filename),
            bytes=self._bytes,
            created_at=now,
            expires_at=None if life is None else now + life,
            storage_key=self.key,
        )

    def _take_field(self, name: str, value: str) -> None:
        if name not in _FIELDS:
            raise unknown_parameter(name)
        if name in self._fields:
            raise invalid_value(name, f"The form field '{name}' is given twice.")
        self._fields[name] = value
        if name == "purpose":
            self._purpose = _purpose(value)
            self._check_size()
            self._check_first()

    def _take_file(self, name: str, filename: str) -> None:
        if name != "file":
            raise unknown_parameter(name)
        if self._filename is not None:
            raise invalid_value("file", "The form field 'file' is given twice.")
        self._filename = filename

    def _check(self, piece: bytes) -> None:
        self._bytes += len(piece)
        self._check_size()
        if self._first is None and self._purpose in (None, "batch"):
            self._first = next(self._splitter.feed(piece), None)
            self._check_first()

    def _check_size(self) -> None:
        limit = largest(self._settings, self._purpose)
        if self._bytes > limit:
            raise too_large(limit)

    def _check_first(self) -> None:
        """A first line too long to look at is left to validation, which names its line."""
        if self._purpose != "batch" or self._first is None or self._first.data is None:
            return
        if not is_json(self._first.data):
            raise _not_jsonl()

    def _life(self) -> timedelta | None:
        anchor, text = self._fields.get(_ANCHOR), self._fields.get(_SECONDS)
        if anchor is None and text is None:
            return _BATCH_FILE_LIFE if self._purpose == "batch" else None
        if anchor is None or text is None:
            raise missing("expires_after.anchor" if anchor is None else "expires_after.seconds")
        if re.fullmatch(r"[0-9]{1,12}", text, re.ASCII) is None:
            raise wrong_type_of("expires_after.seconds", "an integer", "a string")
        return timedelta(seconds=check_expiry(anchor, int(text), "expires_after"))


async def store(upload: Upload, content_type: str, body: AsyncIterator[bytes], services: Services) -> FileRow:
    """Writes the form's file to storage and its row to the database; on an error neither stays.

    Raises:
        ApiError: what the client did wrong.
    """
    async with services.storage.writer(upload.key) as writer:
        async with aclosing(read_form(content_type, body)) as pieces:
            async for piece in pieces:
                await upload.take(piece, writer)
        row = upload.row(services)
    try:
        await services.database.files.insert(row)
    except Exception:
        await discard_object(row.storage_key, services)
        raise
    return row


async def discard_object(key: str, services: Services) -> None:
    """Deletes what no row names any more; if the storage fails it stays as litter, which harms nobody."""
    try:
        await services.storage.delete(key)
    except StorageError as error:
        logger.warning("an object is left behind", extra={"key": key, "error": str(error)})


def largest(settings: Settings, purpose: Purpose | None) -> int:
    """The most bytes a file may have; `purpose` None: the most that any may."""
    if purpose is None:
        return max(settings.max_batch_file_bytes, settings.max_file_bytes)
    return settings.max_batch_file_bytes if purpose == "batch" else settings.max_file_bytes


def too_large(limit: int) -> ApiError:
    return ApiError(413, f"The file is too large: at most {limit} bytes are allowed.", param="file")


def _not_jsonl() -> ApiError:
    return ApiError(400, "Invalid file format for Batch API. Must be .jsonl")


def _purpose(text: str) -> Purpose:
    purpose = _PURPOSES.get(text)
    if purpose is None:
        supported = ", ".join(f"'{name}'" for name in _PURPOSES)
        raise invalid_value("purpose", f"Invalid value: '{text}'. Supported values are: {supported}.")
    return purpose


def _clean(filename: str) -> str:
    """The name as a row and a header can hold it."""
    return _CONTROL.sub("", filename)[:_MAX_NAME_CHARACTERS] or "file"
