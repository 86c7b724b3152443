"""Copies the failed lines of an ended batch into a new input file, unchanged and in order."""

import asyncio
from collections.abc import Collection, Iterator
from secrets import token_hex

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.schemas.file_create import file_expiry
from batchwright.database.records import BatchRow, FileRow
from batchwright.rules.ids import new_file_id, request_id
from batchwright.rules.input.line_splitter import InputLine, LineSplitter
from batchwright.rules.results.error_tally import line_error
from batchwright.rules.results.output_lines import HEAD_BYTES, id_digest, request_digest
from batchwright.rules.stored_objects import object_keys

DIGEST_BYTES = 16
_MAX_LINE_BYTES = 2**31  # the configured limit may have been higher when the input was accepted


class InputMismatch(Exception):
    """The error if a line to copy is not in the input file."""


async def failed_line_digests(error: FileRow, codes: Collection[str], deps: ApiDependencies) -> bytes:
    """Return the digests of the lines in a batch's error file that failed with one of `codes`.

    A digest has 16 bytes and is computed from the id of a line. `copy_lines` uses the digests to find these
    lines in the batch's input. The digests are joined in the order of the error file.

    Args:
        error: database row of the error file.
        codes: error codes, as shown in the batch's `errors_summary`; empty for all lines of the file.
        deps: dependencies of the API.

    Raises:
        ObjectMissing: the file's content is missing.
        ResultDamaged: a line of the file cannot be read.
    """
    if not codes:
        return await _all_digests(error, deps)

    def digests_of(lines: Iterator[InputLine]) -> bytes:
        found = [line.data for line in lines if line.data and line_error(line.data).code in codes]
        return b"".join(map(id_digest, found))

    digests, splitter = bytearray(), LineSplitter(_MAX_LINE_BYTES)
    async for piece in deps.storage.read(error.storage_key):
        digests += await asyncio.to_thread(digests_of, splitter.feed(piece))
    return bytes(digests + digests_of(splitter.finish()))


async def _all_digests(error: FileRow, deps: ApiDependencies) -> bytes:
    digests, heads = bytearray(), _LineHeads()
    async for piece in deps.storage.read(error.storage_key):
        digests += heads.feed(piece)
    return bytes(digests)


async def copy_lines(row: BatchRow, wanted: bytes, source: FileRow, deps: ApiDependencies) -> FileRow:
    """Copy selected lines of a batch's input to a new file in storage. Return the database row for the new
    file, which the caller must insert.

    Args:
        row: row of the ended batch.
        wanted: digests that identify the selected lines, as `failed_line_digests` returns them. They must be
            in the order of the input.
        source: the batch's input file.

    Raises:
        ObjectMissing: the input's content is missing.
        InputMismatch: a selected line is not in the input.
    """
    chosen = _LineSelector(row.order.batch_id, wanted)
    now, file_id = deps.clock(), new_file_id()
    key = object_keys.upload_key(row.order.tenant, file_id, token_hex(8))
    size = 0
    async with deps.storage.writer(key) as writer:
        async for piece in deps.storage.read(source.storage_key):
            lines = await asyncio.to_thread(chosen.feed, piece)
            await writer.write(lines)
            size += len(lines)
        rest = chosen.finish()
        await writer.write(rest)
    return FileRow(
        id=file_id,
        tenant=row.order.tenant,
        purpose="batch",
        filename=f"{row.order.batch_id}_failed.jsonl",
        bytes=size + len(rest),
        created_at=now,
        expires_at=file_expiry("batch", None, now),
        storage_key=key,
    )


class _LineSelector:
    """A selector of the failed lines of an input file. Pass the bytes of the file to `feed` in order, and
    then call `finish`.

    Args:
        failed: digests that identify the failed lines, joined in the order of the input. Each is computed
            from the id of a line.
    """

    def __init__(self, batch_id: str, failed: bytes) -> None:
        self._batch_id, self._failed, self._at = batch_id, failed, 0
        self._splitter = LineSplitter(_MAX_LINE_BYTES)

    def feed(self, piece: bytes) -> bytes:
        return self._select(self._splitter.feed(piece))

    def finish(self) -> bytes:
        """Return the last line of the input if it has no newline and is selected. Otherwise return an empty
        bytes object.

        Call this after all bytes of the input were passed to `feed`.

        Raises:
            InputMismatch: a failed line was not in the input.
        """
        rest = self._select(self._splitter.finish())
        if self._at < len(self._failed):
            missing = (len(self._failed) - self._at) // DIGEST_BYTES
            raise InputMismatch(f"{missing} of the failed lines are not in the input.")
        return rest

    def _select(self, lines: Iterator[InputLine]) -> bytes:
        found: list[bytes] = []
        for line in lines:
            digest = request_digest(request_id(self._batch_id, line.offset))
            if digest == self._failed[self._at : self._at + DIGEST_BYTES]:
                self._at += DIGEST_BYTES
                found.append((line.data or b"") + b"\n")
        return b"".join(found)


class _LineHeads:
    """A reader that computes the digest of each line id in an error file. Pass the bytes of the file to
    `feed` in order.

    The id is at the beginning of a line, so only the beginning of the current line is kept in memory.
    """

    def __init__(self) -> None:
        self._head = b""

    def feed(self, piece: bytes) -> bytes:
        digests, start = bytearray(), 0
        while (end := piece.find(b"\n", start)) >= 0:
            self._buffer(piece, start, end)
            digests += id_digest(self._head)
            self._head, start = b"", end + 1
        self._buffer(piece, start, len(piece))
        return bytes(digests)

    def _buffer(self, piece: bytes, start: int, end: int) -> None:
        left = HEAD_BYTES - len(self._head)
        self._head += piece[start : min(end, start + left)]
