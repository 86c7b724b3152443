"""Compresses responses while they are sent, if the client accepts compression."""

import asyncio
import re
import sys
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from typing import Protocol

from fastapi import Request

from batchwright.rules.input.compression import Compression

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# The lowest levels: on results they save nine tenths of the bytes, and higher levels save little more.
_GZIP_LEVEL, _ZSTD_LEVEL = 1, 1
_GZIP_WBITS = 31
_PART_BYTES = 128 * 1024
_MIN_BYTES = 4096  # smaller files are sent as they are
_NOT_ACCEPTED = re.compile(r";q=0(\.0*)?")
VARY = {"Vary": "Accept-Encoding"}  # header of all responses that may be compressed


def accepted_compression(request: Request, size: int | None = None) -> Compression | None:
    """Return the compression for the response to a request; None to send it uncompressed.

    If the client accepts several formats, zstd is used, because it costs the least CPU.

    Args:
        size: number of bytes of the uncompressed response; None if it is not known. A response below
            `_MIN_BYTES` bytes is not compressed.
    """
    if size is not None and size < _MIN_BYTES:
        return None
    accepted = set[str]()
    for each in request.headers.get("accept-encoding", "").lower().split(","):
        name, semicolon, parameters = "".join(each.split()).partition(";")
        if not _NOT_ACCEPTED.fullmatch(semicolon + parameters):
            accepted.add(name)
    return next((each for each in (Compression.ZSTD, Compression.GZIP) if each.value in accepted), None)


def encoding_headers(compression: Compression | None) -> dict[str, str]:
    """Return the HTTP headers for a response with this compression. None means no compression."""
    return VARY if compression is None else {**VARY, "Content-Encoding": compression.value}


async def encoded(
    first: bytes, rest: AsyncIterable[bytes], compression: Compression | None, *, flushes: bool = False
) -> AsyncGenerator[bytes]:
    """Yield the body of a response: `first`, followed by `rest`. Compress it unless `compression` is None.

    A thread compresses the parts of the body, one at a time. Without compression, each yielded part has at
    most 128 KiB, because the connection of a slow client keeps two parts in memory.

    Args:
        first: beginning of the body.
        rest: the other bytes of the body, in parts.
        compression: format; None to send the body uncompressed.
        flushes: True for a live stream. The client can then decompress each part immediately.
    """
    if compression is None:
        for part in _parts(first):
            yield part
        del first  # a slow client would otherwise keep it in memory until the end
        async for piece in rest:
            for part in _parts(piece):
                yield part
        return
    compressor = _GzipCompressor() if compression is Compression.GZIP else _ZstdCompressor()

    def compress(piece: bytes) -> bytes:
        packed = compressor.compress(piece)
        return packed + compressor.flush() if flushes and piece else packed

    yield await asyncio.to_thread(compress, first)
    del first
    async for piece in rest:
        yield await asyncio.to_thread(compress, piece)
    yield await asyncio.to_thread(compressor.finish)


def _parts(piece: bytes) -> Iterator[bytes]:
    if len(piece) <= _PART_BYTES:
        yield piece
        return
    for start in range(0, len(piece), _PART_BYTES):
        yield piece[start : start + _PART_BYTES]


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes:
        """Return compressed bytes with which the client can decompress all data that was added so far."""
        ...

    def finish(self) -> bytes: ...


class _GzipCompressor(_Compressor):
    def __init__(self) -> None:
        self._compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
        self.compress, self.finish = self._compressor.compress, self._compressor.flush

    def flush(self) -> bytes:
        return self._compressor.flush(zlib.Z_SYNC_FLUSH)


class _ZstdCompressor(_Compressor):
    def __init__(self) -> None:
        self._compressor = zstd.ZstdCompressor(_ZSTD_LEVEL)
        self.compress, self.finish = self._compressor.compress, self._compressor.flush

    def flush(self) -> bytes:
        return self._compressor.flush(zstd.ZstdCompressor.FLUSH_BLOCK)
