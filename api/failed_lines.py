"""The lines of an ended batch that failed, as the input of another: byte for byte, in their order."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from secrets import token_hex

from api.receiving import expiry
from api.services import Services
from batchwright.database.rows import BatchRow, FileRow
from batchwright.rules import keys
from batchwright.rules.ids import new_file_id, request_id
from batchwright.rules.lines import Line, Splitter
from batchwright.rules.results import HEAD_BYTES, digest_of, id_digest

_DIGEST_BYTES = 16
_MAX_LINE_BYTES = 2**31  # the input was accepted under whatever limit there was


class FilesDisagree(Exception):
    """Lines are wanted that the input does not have."""


async def failed_lines(error: FileRow, services: Services) -> bytes:
    """The digests of the lines of an error file, as `copy_lines` takes them; 16 bytes of memory for each.

    Raises:
        ObjectMissing: the file has lost its bytes.
        ResultDamaged.
    """
    return await _failed(services.storage.read(error.storage_key))


async def copy_lines(row: BatchRow, wanted: bytes, source: FileRow, services: Services) -> FileRow:
    """Writes the object and returns the file it is to be; nothing is left of it where that fails.

    `wanted` are the digests of the lines' ids, one after the other in the order of the input.

    Raises:
        ObjectMissing: the input has lost its bytes.
        FilesDisagree.
    """
    chosen = _Chosen(row.order.batch_id, wanted)
    now, file_id = services.clock(), new_file_id()
    key = keys.upload_key(row.order.tenant, file_id, token_hex(8))
    size = 0
    async with services.storage.writer(key) as writer:
        async for piece in services.storage.read(source.storage_key):
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
        expires_at=expiry("batch", None, now),
        storage_key=key,
    )


class _Chosen:
    """The failed lines as the input comes by; `failed` are digests of their ids, in the input's order."""

    def __init__(self, batch_id: str, failed: bytes) -> None:
        self._batch_id, self._failed, self._at = batch_id, failed, 0
        self._splitter = Splitter(_MAX_LINE_BYTES)

    def feed(self, piece: bytes) -> bytes:
        return self._take(self._splitter.feed(piece))

    def finish(self) -> bytes:
        """Raises FilesDisagree where a failed line was not among them."""
        rest = self._take(self._splitter.finish())
        if self._at < len(self._failed):
            missing = (len(self._failed) - self._at) // _DIGEST_BYTES
            raise FilesDisagree(f"{missing} of the failed lines are not in the input.")
        return rest

    def _take(self, lines: Iterator[Line]) -> bytes:
        found: list[bytes] = []
        for line in lines:
            digest = digest_of(request_id(self._batch_id, line.offset))
            if digest == self._failed[self._at : self._at + _DIGEST_BYTES]:
                self._at += _DIGEST_BYTES
                found.append((line.data or b"") + b"\n")
        return b"".join(found)


async def _failed(pieces: AsyncIterator[bytes]) -> bytes:
    """The ids of the error file's lines, 16 bytes each; of a line only its beginning is kept."""
    digests, heads = bytearray(), _Heads()
    async for piece in pieces:
        digests += heads.feed(piece)
    return bytes(digests)


class _Heads:
    """The first bytes of every line that passes by; every line of an error file ends in a newline."""

    def __init__(self) -> None:
        self._head = b""

    def feed(self, piece: bytes) -> bytes:
        digests, start = bytearray(), 0
        while (end := piece.find(b"\n", start)) >= 0:
            self._grow(piece, start, end)
            digests += id_digest(self._head)
            self._head, start = b"", end + 1
        self._grow(piece, start, len(piece))
        return bytes(digests)

    def _grow(self, piece: bytes, start: int, end: int) -> None:
        room = HEAD_BYTES - len(self._head)
        self._head += piece[start : min(end, start + room)]
