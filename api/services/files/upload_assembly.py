"""Stores the parts of an upload as objects, and copies them into one file when the upload is completed.

If the input of a batch is compressed, the new file contains the decompressed input, except with the profile
`strict`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext
from datetime import timedelta
from hashlib import md5
from secrets import token_hex

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import (
    expanded_file_too_large,
    invalid_value,
    missing_parameter,
    payload_too_large,
    unknown_parameter,
)
from batchwright.api.schemas.file_create import file_expiry
from batchwright.api.schemas.upload_create import MAX_PARTS, UploadCompletion, upload_size_limit
from batchwright.api.services.files.first_line import FirstLineCheck
from batchwright.api.services.files.multipart_form import FormFile, FormPiece, read_multipart
from batchwright.api.services.files.upload import discard_object, store_pieces
from batchwright.api.services.quota_checks import QuotaChecks, StorageQuota
from batchwright.contracts.terms import Profile
from batchwright.database.errors import OutcomeUnknown
from batchwright.database.records import FileRow, PartRow, UploadRow
from batchwright.rules.ids import new_file_id, new_part_id
from batchwright.rules.input.compression import expanded_name
from batchwright.rules.input.expanded_content import ExpandedContent
from batchwright.rules.stored_objects import object_keys
from batchwright.settings import Settings
from batchwright.storage.base import ObjectWriter

MAX_PART_BYTES = 64 * 1024 * 1024  # as in OpenAI's API


async def assemble(upload: UploadRow, completion: UploadCompletion, deps: ApiDependencies) -> UploadRow:
    """Copy the parts of an upload into one file, complete the upload, and return the upload's row.

    If the upload has ended meanwhile, for example because another request completed it, delete the new file
    and return the upload's current row.

    Raises:
        ApiError: a listed part does not exist, the parts do not have the announced size or the MD5 digest in
            the request, a compressed file is damaged or is too large after decompression, the storage quota
            is exhausted, or a batch input is empty or does not begin with a line of JSON. The upload stays
            unchanged.
        ObjectMissing: the object of a part no longer exists.
    """
    parts = await _requested_parts(upload, completion, deps)
    checks = QuotaChecks(deps, upload.tenant)
    quota = await checks.storage_quota()
    file = _file_row(upload, deps)
    async with deps.storage.writer(file.storage_key) as writer:
        assembled = _AssembledFile(upload, deps.settings, checks, quota)
        for part in parts:
            async for piece in deps.storage.read(part.storage_key):
                await assembled.add(piece, writer)
        await assembled.finish(completion.md5, writer)
    file = assembled.described(file)
    extra = assembled.extra_bytes
    try:
        async with checks.reserve(file.id, extra, quota) if extra else nullcontext():
            row = await deps.database.uploads.complete(upload, file, completion.digest)
    except OutcomeUnknown:  # the file may exist; if it does not, retention deletes the orphaned object
        raise
    except Exception:
        await discard_object(file.storage_key, deps)
        raise
    if row.file_id != file.id:
        await discard_object(file.storage_key, deps)
    return row


async def _requested_parts(
    upload: UploadRow, completion: UploadCompletion, deps: ApiDependencies
) -> list[PartRow]:
    """Return the rows of the parts that the request lists, in the same order.

    Raises:
        ApiError: a part does not exist, or the parts do not have the announced total size.
    """
    stored = await deps.database.uploads.parts(upload.tenant, upload.id, completion.part_ids)
    for part_id in completion.part_ids:
        if part_id not in stored:
            raise invalid_value("part_ids", f"Invalid 'part_ids': the upload has no part '{part_id}'.")
    parts = [stored[part_id] for part_id in completion.part_ids]
    total = sum(part.bytes for part in parts)
    if total != upload.bytes:
        message = f"The parts have {total} bytes together, but the upload was announced with {upload.bytes}."
        raise invalid_value("part_ids", message)
    return parts


def _file_row(upload: UploadRow, deps: ApiDependencies) -> FileRow:
    now, file_id, seconds = deps.clock(), new_file_id(), upload.expires_after_seconds
    life = None if seconds is None else timedelta(seconds=seconds)
    return FileRow(
        id=file_id,
        tenant=upload.tenant,
        purpose=upload.purpose,
        filename=upload.filename,
        bytes=upload.bytes,
        created_at=now,
        expires_at=file_expiry(upload.purpose, life, now),
        storage_key=object_keys.upload_key(upload.tenant, file_id, token_hex(8)),
    )


class _AssembledFile:
    """The writer of the file that is assembled from the parts of an upload. It also checks the MD5 digest and
    the size of the file, and the first line of a batch input.

    The digest is computed from the parts as they were sent, before a compressed file is decompressed.
    """

    def __init__(
        self, upload: UploadRow, settings: Settings, checks: QuotaChecks, quota: StorageQuota
    ) -> None:
        is_batch = upload.purpose == "batch"
        self._upload, self._checks, self._quota = upload, checks, quota
        self._max_bytes = upload_size_limit(settings, upload.purpose)
        self._digest = md5(usedforsecurity=False)
        self._first = FirstLineCheck(settings.max_line_bytes) if is_batch else None
        self._content = ExpandedContent(expands=is_batch and settings.profile is not Profile.STRICT)
        self._bytes = 0

    @property
    def extra_bytes(self) -> int:
        """Number of bytes by which the stored file is larger than the uploaded parts.

        The uploaded parts already count towards the storage quota, but these additional bytes do not.
        """
        return max(self._bytes - self._upload.bytes, 0)

    def described(self, row: FileRow) -> FileRow:
        """Return the file's row. If the file was decompressed, the returned row has the size and the name of
        the decompressed file.
        """
        if not self._content.is_expanded:
            return row
        return row.model_copy(update={"bytes": self._bytes, "filename": expanded_name(row.filename)})

    async def add(self, piece: bytes, writer: ObjectWriter) -> None:
        """Add `piece`, the next bytes of the uploaded file, to the stored file.

        Pass the bytes of all parts of the upload in order. If the uploaded file is compressed, the
        decompressed bytes are stored.

        Raises:
            ApiError: the file is damaged or too large, the quota is exhausted, or the first line is not JSON.
        """
        await asyncio.to_thread(self._digest.update, piece)  # 8 GB take seconds
        await store_pieces(self._content.feed(piece), self._count, writer)

    async def finish(self, expected: str | None, writer: ObjectWriter) -> None:
        """Write the last bytes, and check the complete file.

        Args:
            expected: MD5 digest that all parts together must have, in hexadecimal; None if the digest is not
                checked.

        Raises:
            ApiError: the end of a compressed file is missing, the file is too large, the quota is exhausted,
                a batch input is empty or does not begin with a line of JSON, or the digest of the parts is
                not `expected`.
        """
        await store_pieces(self._content.finish(), self._count, writer)
        if self._first is not None:
            self._first.finish()
        digest = self._digest.hexdigest()
        if expected not in (None, digest):
            raise invalid_value("md5", f"The MD5 of the parts is {digest}, not {expected}.")

    def _count(self, piece: bytes) -> None:
        self._bytes += len(piece)
        if self._bytes > self._max_bytes:
            raise expanded_file_too_large(self._max_bytes)
        if self.extra_bytes:
            self._checks.check_storage(self._quota, self.extra_bytes)
        if self._first is not None:
            self._first.feed(piece)
            self._first.check()


async def store_part(
    upload: UploadRow, content_type: str, body: AsyncIterator[bytes], deps: ApiDependencies
) -> PartRow:
    """Store one part of an upload: the file in the form field `data`. Insert the part's row, and return the
    row.

    If the row cannot be inserted, the new object is deleted immediately. If the database's response was lost,
    the row may exist. The object is then deleted later, together with the upload.

    Raises:
        ApiError: the request is not valid, or the storage quota does not allow the bytes by which all parts
            together exceed the announced size (429).
        UnknownUpload: the upload no longer exists.
        UploadClosed: the upload was completed or cancelled, or has expired.
        UploadFull: the upload would have too many parts or bytes.
    """
    part_id = new_part_id()
    key = object_keys.part_key(upload.tenant, upload.id, part_id)
    async with deps.storage.writer(key) as writer:
        data = _PartData()
        async with aclosing(read_multipart(content_type, body, "data")) as pieces:
            async for piece in pieces:
                await data.write(piece, writer)
        size = data.finish()
    now = deps.clock()
    part = PartRow(
        id=part_id, tenant=upload.tenant, upload_id=upload.id, bytes=size, storage_key=key, created_at=now
    )
    try:
        await _add_part(part, upload, deps)
    except OutcomeUnknown:  # the row may exist; if it does not, the object is deleted with the upload
        raise
    except Exception:
        await discard_object(key, deps)
        raise
    return part


async def _add_part(part: PartRow, upload: UploadRow, deps: ApiDependencies) -> None:
    """Insert the row of a part. Raise the same errors as `store_part`.

    The announced size of an upload already counts towards the storage quota. If a client sends more bytes
    than it has announced (for example the same part twice), the additional bytes count, too.
    """
    checks = QuotaChecks(deps, upload.tenant)
    limit = (await checks.limits()).stored_bytes
    async with checks.quota_errors():
        await deps.database.uploads.add_part(
            part,
            at=part.created_at,
            max_bytes=deps.settings.max_upload_bytes,
            max_parts=MAX_PARTS,
            storage_limit=limit,
        )


class _PartData:
    """A receiver of the multipart form that contains one part of an upload.

    The form must have exactly one field, the file `data`. The receiver writes this file to storage.
    """

    def __init__(self) -> None:
        self._bytes: int | None = None

    async def write(self, piece: FormPiece, writer: ObjectWriter) -> None:
        if isinstance(piece, bytes):
            self._bytes = (self._bytes or 0) + len(piece)
            if self._bytes > MAX_PART_BYTES:
                raise payload_too_large(MAX_PART_BYTES, "data")
            await writer.write(piece)
            return
        if piece.name != "data" or not isinstance(piece, FormFile):
            raise unknown_parameter(piece.name)
        if self._bytes is not None:
            raise invalid_value("data", "The form field 'data' is given twice.")
        self._bytes = 0

    def finish(self) -> int:
        """Return the size of the part in bytes.

        Raises:
            ApiError: the form has no file `data`.
        """
        if self._bytes is None:
            raise missing_parameter("data")
        return self._bytes
