"""Receives the uploads of `POST /v1/files`.

A file is validated while it is streamed to storage. If it is rejected, its object is deleted. If the input of
a batch is compressed, it is stored decompressed, so that all other code reads plain JSON lines.
"""

import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from datetime import datetime, timedelta
from hashlib import sha256
from secrets import token_hex

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import (
    IDEMPOTENCY_KEY_HINT,
    damaged_archive,
    expanded_file_too_large,
    invalid_type,
    invalid_value,
    missing_parameter,
    payload_too_large,
    unknown_parameter,
)
from batchwright.api.schemas.file_create import (
    ContentObserver,
    check_expiry,
    check_purpose,
    clean_filename,
    file_expiry,
    file_size_limit,
)
from batchwright.api.services.files.first_line import FirstLineCheck
from batchwright.api.services.files.multipart_form import FormField, FormFile, FormPiece, read_multipart
from batchwright.api.services.idempotency import IdempotencyKeys
from batchwright.api.services.quota_checks import QuotaChecks, StorageQuota
from batchwright.contracts.terms import Profile
from batchwright.database.errors import OutcomeUnknown
from batchwright.database.records import FileRow, Purpose
from batchwright.rules.ids import new_file_id
from batchwright.rules.input.compression import DamagedArchive, expanded_name
from batchwright.rules.input.expanded_content import ExpandedContent
from batchwright.rules.stored_objects import object_keys
from batchwright.settings import Settings
from batchwright.storage.base import ObjectWriter, StorageError

logger = logging.getLogger(__name__)


_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = ("purpose", _ANCHOR, _SECONDS)


class FileUpload:
    """One upload of a file with a single request, such as `POST /v1/files`.

    Call the methods in this order: `check_quota`, `feed` for each piece of the form (such as a field or a
    part of the file), `finish`, `row`.
    """

    def __init__(
        self,
        tenant: str,
        settings: Settings,
        idempotency_key: str | None = None,
        *,
        max_bytes: int | None = None,
        observer: ContentObserver | None = None,
    ) -> None:
        """Create the state of an upload.

        Args:
            idempotency_key: idempotency key of the request; None if it has none.
            max_bytes: maximum size of the file; None to use the size limit of the file's purpose.
            observer: function that gets each piece of the file after the piece was stored; None for no
                observer.
        """
        self.tenant, self._max_bytes, self._observer = tenant, max_bytes, observer
        self.idempotency_key = idempotency_key
        self._settings = settings
        self._fields: dict[str, str] = {}
        self._purpose: Purpose | None = None
        self._filename: str | None = None
        self._content: ExpandedContent | None = None
        self._received = 0  # bytes of the file as they were sent
        self._bytes = 0  # bytes of the file as they are stored
        self._checks: QuotaChecks | None = None
        self.quota = StorageQuota(0, 0)
        self._digest = sha256()
        self._first = FirstLineCheck(settings.max_line_bytes)
        self._file_id = new_file_id()
        self.key = object_keys.upload_key(tenant, self._file_id, token_hex(8))

    async def read_quota(self, deps: ApiDependencies) -> None:
        """Read the tenant's storage quota. After this call, an upload that exceeds the quota is rejected."""
        self._checks = QuotaChecks(deps, self.tenant)
        self.quota = await self._checks.storage_quota()

    async def check_quota(self, deps: ApiDependencies) -> None:
        """Read the tenant's storage quota, and check that the tenant may store more.

        If an earlier request with the same idempotency key has stored its file, the quota is not checked.

        Raises:
            ApiError: the quota is exhausted.
        """
        await self.read_quota(deps)
        key = self.idempotency_key
        # Read after the quota: if the quota counts the file of an earlier request, its key is found.
        if key is None or await IdempotencyKeys(deps, self.tenant, "files").find_claim(key) is None:
            self._check_quota(least=1)
        else:
            self._checks = None

    def _check_quota(self, least: int = 0) -> None:
        """Check that the tenant's storage quota allows the bytes of this file that are stored so far.

        Args:
            least: number of bytes to check if fewer bytes of the file are stored. With 1, the check fails if
                the quota is used up, even if no byte of the file is stored yet.

        Raises:
            ApiError: the quota allows fewer bytes.
        """
        if self._checks is not None:
            self._checks.check_storage(self.quota, max(self._bytes, least))

    async def feed(self, piece: FormPiece, writer: ObjectWriter) -> None:
        """Process the next piece of the form: a field, the start of a file, or bytes of a file. Write bytes
        of the file to storage with `writer`.

        Raises:
            ApiError: a field or the file is not valid, or the file is too large.
        """
        match piece:
            case FormField(name, value):
                self._add_field(name, value)
            case FormFile(name, filename):
                self._start_file(name, filename)
            case _:
                if self._content is None:
                    self._content = ExpandedContent(expands=self._expands)
                self._received += len(piece)
                self._check_size()  # expanded, the piece may have no bytes at all
                await store_pieces(self._observed(self._content.feed(piece)), self._count, writer)

    async def finish(self, writer: ObjectWriter) -> None:
        """Write the last bytes of the file to storage with `writer`. Call this after the last piece.

        Raises:
            ApiError: the file is compressed, and its end is missing.
        """
        if self._content is not None:
            await store_pieces(self._observed(self._content.finish()), self._count, writer)

    def row(self, now: datetime) -> FileRow:
        """Return the database row of the complete file. `now` is its creation time.

        Raises:
            ApiError: a field is missing or not valid, or the file is too large for its purpose or for the
                quota. Or the input of a batch is empty, or its first line is not JSON.
        """
        if self._filename is None:
            raise missing_parameter("file")
        if self._purpose is None:
            raise missing_parameter("purpose")
        self._check_size()
        if self._purpose == "batch":
            self._first.finish()
        name = expanded_name(self._filename) if self._is_expanded else self._filename
        return FileRow(
            id=self._file_id,
            tenant=self.tenant,
            purpose=self._purpose,
            filename=clean_filename(name),
            bytes=self._bytes,
            created_at=now,
            expires_at=file_expiry(self._purpose, self._lifetime(), now),
            storage_key=self.key,
        )

    def fingerprint(self) -> str:
        """Return a digest of the form's fields and of the file. The order of the fields does not matter."""
        fields = [f"{name}={self._fields.get(name)!r}" for name in _FIELDS]
        text = "\n".join([self._digest.hexdigest(), repr(self._filename), *fields])
        return sha256(text.encode(errors="backslashreplace")).hexdigest()

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the file that are in memory. The bytes that `feed` is processing now are not
        included.
        """
        return self._first.held_bytes

    def _add_field(self, name: str, value: str) -> None:
        if name not in _FIELDS:
            raise unknown_parameter(name, IDEMPOTENCY_KEY_HINT)
        if name in self._fields:
            raise invalid_value(name, f"The form field '{name}' is given twice.")
        self._fields[name] = value
        if name == "purpose":
            self._purpose = check_purpose(value)
            if self._is_expanded and self._purpose != "batch":
                message = "Send the form field 'purpose' before the file, because the file is compressed."
                raise invalid_value("purpose", message)
            self._check_size()
            self._check_first_line()

    def _start_file(self, name: str, filename: str) -> None:
        if name != "file":
            raise unknown_parameter(name)
        if self._filename is not None:
            raise invalid_value("file", "The form field 'file' is given twice.")
        self._filename = filename

    @property
    def _expands(self) -> bool:
        """True if a compressed file is decompressed before it is stored.

        Inputs of batches, and files whose purpose is not known yet, are decompressed. With the profile
        `strict`, which accepts only what OpenAI accepts, no file is decompressed.
        """
        return self._settings.profile is not Profile.STRICT and self._purpose in (None, "batch")

    @property
    def _is_expanded(self) -> bool:
        return self._content is not None and self._content.is_expanded

    async def _observed(self, content: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Yield the content unchanged. The observer is called with each piece of bytes after it was
        stored.
        """
        async for piece in content:
            yield piece
            if self._observer is not None:
                await self._observer(piece)

    def _count(self, piece: bytes) -> None:
        self._bytes += len(piece)
        self._check_size()
        if self.idempotency_key is not None:
            self._digest.update(piece)
        if self._purpose in (None, "batch"):
            self._first.feed(piece)
            self._check_first_line()

    def _check_size(self) -> None:
        limit = self._max_bytes or file_size_limit(self._settings, self._purpose)
        if self._received > limit:
            raise payload_too_large(limit)
        if self._bytes > limit:
            raise expanded_file_too_large(limit)
        self._check_quota()

    def _check_first_line(self) -> None:
        if self._purpose == "batch":
            self._first.check()

    def _lifetime(self) -> timedelta | None:
        anchor, seconds = self._fields.get(_ANCHOR), self._fields.get(_SECONDS)
        if anchor is None and seconds is None:
            return None
        if anchor is None or seconds is None:
            raise missing_parameter("expires_after.anchor" if anchor is None else "expires_after.seconds")
        if re.fullmatch(r"[0-9]{1,12}", seconds, re.ASCII) is None:
            raise invalid_type("expires_after.seconds", "an integer", "a string")
        return timedelta(seconds=check_expiry(anchor, int(seconds), "expires_after"))


async def store_file(
    upload: FileUpload, content_type: str, body: AsyncIterator[bytes], deps: ApiDependencies
) -> FileRow:
    """Parse the upload form in `body`, store its file, and return the file's row.

    Raises:
        ApiError: as in `store_form`, or the body is not a complete form (400).
    """
    return await store_form(upload, read_multipart(content_type, body), deps)


async def store_form(upload: FileUpload, form: AsyncGenerator[FormPiece], deps: ApiDependencies) -> FileRow:
    """Write the file of a form to storage, insert its row into the database, and return the row.

    If the idempotency key was used before, delete the new object, and return the row of the earlier file.
    After an error, delete the new object, too. There are two exceptions:

    - If the deletion fails, the retention activity (which deletes data that is no longer needed) deletes the
      object later.
    - If the database's response was lost, the row may exist, so the object is kept. If the row does not
      exist, the retention activity deletes the object later.

    Raises:
        ApiError: the request is not valid, its idempotency key was used with another request (409), the quota
            is exhausted (429), or this process has too many bytes of its clients in memory (429).
    """
    await upload.check_quota(deps)
    row = await write_form(upload, form, deps)
    try:
        existing = await _insert(row, upload, deps)
    except OutcomeUnknown:  # the row may exist; if it does not, retention deletes the orphaned object
        raise
    except Exception:
        await discard_object(row.storage_key, deps)
        raise
    if existing is not None:
        await discard_object(row.storage_key, deps)
    return existing or row


async def write_form(upload: FileUpload, form: AsyncGenerator[FormPiece], deps: ApiDependencies) -> FileRow:
    """Write the file of a form to storage, and return the row of the file, which the caller must insert.

    If `upload.read_quota` was not called before, no quota is checked. After an error, the written bytes are
    deleted. Raises the same errors as `store_form`.
    """
    async with deps.storage.writer(upload.key) as writer:
        with deps.held_bytes.counted(upload.tenant) as count:
            async with aclosing(form) as pieces:
                async for piece in pieces:
                    held = upload.held_bytes
                    await upload.feed(piece, writer)
                    count(upload.held_bytes - held)
        await upload.finish(writer)
        return upload.row(deps.clock())


async def _insert(row: FileRow, upload: FileUpload, deps: ApiDependencies) -> FileRow | None:
    """Insert the row of the file and return None.

    If the idempotency key was used before, insert nothing and return the row of the earlier file.

    Raises:
        ApiError: the quota is exhausted (429), or the key was used with another request (409).
    """
    key, checks = upload.idempotency_key, QuotaChecks(deps, upload.tenant)
    if key is None:
        async with checks.reserve(row.id, row.bytes, upload.quota):
            await deps.database.files.insert(row)
        return None
    keys, fingerprint = IdempotencyKeys(deps, upload.tenant, "files"), upload.fingerprint()
    stored = await keys.find(key, fingerprint)
    if stored is None:
        admission = checks.storage_admission(row.id, row.bytes, upload.quota)
        async with checks.quota_errors():
            admissions = [admission] if admission else []
            stored = await keys.claim(key, fingerprint, row.model_dump_json(), row, admissions=admissions)
    return None if stored is None else FileRow.model_validate_json(stored)


async def store_pieces(
    content: AsyncGenerator[bytes], check: Callable[[bytes], None], writer: ObjectWriter
) -> None:
    """Write the pieces of a file to storage. Call `check` with each piece before it is written.

    Raises:
        ApiError: the file is compressed and damaged.
    """
    try:
        async for piece in content:
            check(piece)
            await writer.write(piece)
    except DamagedArchive as error:
        raise damaged_archive(error) from None


async def discard_object(key: str, deps: ApiDependencies) -> None:
    """Delete a stored object that no database row refers to.

    If the storage is unavailable, only log a warning. The retention activity (which deletes data that is no
    longer needed) then deletes the object later.
    """
    try:
        await deps.storage.delete(key)
    except StorageError as error:
        logger.warning("orphaned object could not be deleted", extra={"key": key, "error": str(error)})
