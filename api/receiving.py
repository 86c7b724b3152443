"""A file on its way in: checked while it streams to storage, gone without a trace where it is refused."""

import logging
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import datetime, timedelta
from hashlib import sha256
from secrets import token_hex
from typing import get_args

from api.allowance import Allowance, Room
from api.creation import check_expiry
from api.errors import ApiError, invalid_value, missing, unknown_parameter, wrong_type_of
from api.forms import Field, FileStart, Piece, read_form
from api.idempotency import Keys
from api.jsonl import FirstLine
from api.services import Services
from batchwright.database.errors import OutcomeUnknown
from batchwright.database.rows import FileRow, Purpose
from batchwright.rules import keys
from batchwright.rules.ids import new_file_id
from batchwright.settings import Settings
from batchwright.storage.base import ObjectWriter, StorageError

logger = logging.getLogger(__name__)

PURPOSES: dict[str, Purpose] = {
    purpose: purpose for purpose in get_args(Purpose) if purpose != "batch_output"
}
_BATCH_FILE_LIFE = timedelta(days=30)
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = ("purpose", _ANCHOR, _SECONDS)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MAX_NAME_CHARACTERS = 255


class Incoming:
    """One `POST /v1/files`: feed it the form's pieces, then ask for the row."""

    def __init__(self, tenant: str, settings: Settings, idempotency_key: str | None = None) -> None:
        self.tenant = tenant
        self.idempotency_key = idempotency_key
        self._settings = settings
        self._fields: dict[str, str] = {}
        self._purpose: Purpose | None = None
        self._filename: str | None = None
        self._bytes = 0
        self._allowance: Allowance | None = None
        self._room = Room(0, 0)
        self._digest = sha256()
        self._first = FirstLine(settings.max_line_bytes)
        self._file_id = new_file_id()
        self.key = keys.upload_key(tenant, self._file_id, token_hex(8))

    async def look_at_room(self, services: Services) -> None:
        """Before the first piece. Raises ApiError where there is none at all, unless a key may spare it."""
        self._allowance = Allowance(services, self.tenant)
        self._room = await self._allowance.room()
        if self.idempotency_key is None:
            self.check_room(least=1)

    def check_room(self, least: int = 0) -> None:
        """Raises ApiError where what has come is too much for the tenant's quota."""
        if self._allowance is not None:
            self._allowance.check_room(self._room, max(self._bytes, least))

    def held(self, services: Services) -> AbstractAsyncContextManager[None]:
        """Its bytes, while its row is made; entering raises ApiError where others have them by now."""
        return Allowance(services, self.tenant).held(self._file_id, self._bytes, self._room)

    async def take(self, piece: Piece, writer: ObjectWriter) -> None:
        """Raises ApiError as soon as the file cannot be accepted any more."""
        match piece:
            case Field(name, value):
                self._take_field(name, value)
            case FileStart(name, filename):
                self._take_file(name, filename)
            case _:
                self._check(piece)
                await writer.write(piece)

    def row(self, now: datetime) -> FileRow:
        """The whole file's row. Raises ApiError where something is missing or wrong."""
        if self._filename is None:
            raise missing("file")
        if self._purpose is None:
            raise missing("purpose")
        self._check_size()
        if self._purpose == "batch":
            self._first.finish()
        return FileRow(
            id=self._file_id,
            tenant=self.tenant,
            purpose=self._purpose,
            filename=clean_name(self._filename),
            bytes=self._bytes,
            created_at=now,
            expires_at=expiry(self._purpose, self._life(), now),
            storage_key=self.key,
        )

    def fingerprint(self) -> str:
        """Of what was sent, whatever the form's boundary and order."""
        fields = [f"{name}={self._fields.get(name)!r}" for name in _FIELDS]
        told = "\n".join([self._digest.hexdigest(), repr(self._filename), *fields])
        return sha256(told.encode(errors="backslashreplace")).hexdigest()

    def _take_field(self, name: str, value: str) -> None:
        if name not in _FIELDS:
            raise unknown_parameter(name)
        if name in self._fields:
            raise invalid_value(name, f"The form field '{name}' is given twice.")
        self._fields[name] = value
        if name == "purpose":
            self._purpose = check_purpose(value)
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
        if self.idempotency_key is not None:
            self._digest.update(piece)
        if self._purpose in (None, "batch"):
            self._first.feed(piece)
            self._check_first()

    def _check_size(self) -> None:
        limit = largest(self._settings, self._purpose)
        if self._bytes > limit:
            raise too_large(limit)
        if self.idempotency_key is None:
            self.check_room()

    def _check_first(self) -> None:
        if self._purpose == "batch":
            self._first.check()

    def _life(self) -> timedelta | None:
        anchor, text = self._fields.get(_ANCHOR), self._fields.get(_SECONDS)
        if anchor is None and text is None:
            return None
        if anchor is None or text is None:
            raise missing("expires_after.anchor" if anchor is None else "expires_after.seconds")
        if re.fullmatch(r"[0-9]{1,12}", text, re.ASCII) is None:
            raise wrong_type_of("expires_after.seconds", "an integer", "a string")
        return timedelta(seconds=check_expiry(anchor, int(text), "expires_after"))


async def store(
    incoming: Incoming, content_type: str, body: AsyncIterator[bytes], services: Services
) -> FileRow:
    """Writes the form's file to storage and its row to the database; on an error neither stays, or both do.

    Raises:
        ApiError: what the client did wrong.
    """
    await incoming.look_at_room(services)
    async with services.storage.writer(incoming.key) as writer:
        async with aclosing(read_form(content_type, body)) as pieces:
            async for piece in pieces:
                await incoming.take(piece, writer)
        row = incoming.row(services.clock())
    try:
        first = await _insert(row, incoming, services)
    except OutcomeUnknown:  # the row may be there; if it is not, retention takes the object for an orphan
        raise
    except Exception:
        await discard_object(row.storage_key, services)
        raise
    if first is not None:
        await discard_object(row.storage_key, services)
    return first or row


async def _insert(row: FileRow, incoming: Incoming, services: Services) -> FileRow | None:
    """None, or the file that the same request made before."""
    key = incoming.idempotency_key
    if key is None:
        async with incoming.held(services):
            await services.database.files.insert(row)
        return None
    claimed = Keys(services, incoming.tenant, "files")
    made = await claimed.find(key, incoming.fingerprint())
    if made is None:
        async with incoming.held(services):
            made = await claimed.claim(key, incoming.fingerprint(), row.model_dump_json(), row)
    return None if made is None else FileRow.model_validate_json(made)


async def discard_object(key: str, services: Services) -> None:
    """Deletes what no row names any more; if the storage fails it stays as litter, which harms nobody."""
    try:
        await services.storage.delete(key)
    except StorageError as error:
        logger.warning("an object is left behind", extra={"key": key, "error": str(error)})


def largest(settings: Settings, purpose: Purpose | None) -> int:
    """The most bytes a file sent at once may have; `purpose` None: the most that any may."""
    if purpose is None:
        return max(settings.max_batch_file_bytes, settings.max_file_bytes)
    return settings.max_batch_file_bytes if purpose == "batch" else settings.max_file_bytes


def too_large(limit: int, what: str = "file") -> ApiError:
    return ApiError(413, f"The {what} is too large: at most {limit} bytes are allowed.", param=what)


def check_purpose(text: str) -> Purpose:
    """Raises ApiError where no file that is sent may have it."""
    purpose = PURPOSES.get(text)
    if purpose is None:
        supported = ", ".join(f"'{name}'" for name in PURPOSES)
        raise invalid_value("purpose", f"Invalid value: '{text}'. Supported values are: {supported}.")
    return purpose


def expiry(purpose: Purpose, life: timedelta | None, now: datetime) -> datetime | None:
    """When a new file expires; `life` None: nothing was asked for."""
    if life is None and purpose == "batch":
        life = _BATCH_FILE_LIFE
    return None if life is None else now + life


def clean_name(filename: str) -> str:
    """The name as a row and a header can hold it."""
    return _CONTROL.sub("", filename)[:_MAX_NAME_CHARACTERS] or "file"
