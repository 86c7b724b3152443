"""Decompress files while they are received. Files that are not compressed are passed on unchanged."""

import asyncio
from collections.abc import AsyncGenerator

from batchwright.rules.input.compression import MAGIC_BYTES, Expander, compression_of


class ExpandedContent:
    """The content of one file, which is received in pieces and decompressed before its bytes are stored.

    A gzip or zstd file is expanded in a thread, in bounded memory. All other files are passed on unchanged.
    """

    def __init__(self, *, expands: bool) -> None:
        """Prepare to receive one file.

        Args:
            expands: True to expand a compressed file; False to pass on every file unchanged.
        """
        self._start: bytes | None = b"" if expands else None  # what was received before the format was known
        self._expander: Expander | None = None

    @property
    def is_expanded(self) -> bool:
        return self._expander is not None

    async def feed(self, piece: bytes) -> AsyncGenerator[bytes]:
        """Receive the next piece of the file. Yield the bytes to store, expanded if the file is compressed.

        Raises:
            DamagedArchive: the file is compressed and damaged.
        """
        if self._start is not None:
            self._start += piece
            if len(self._start) < MAGIC_BYTES:
                return
            piece = self._detect_format(self._start)
        async for part in self._expanded(piece):
            yield part

    async def finish(self) -> AsyncGenerator[bytes]:
        """Yield the last bytes to store.

        Raises:
            DamagedArchive: the file is compressed, and its end is missing.
        """
        if self._start is not None:
            async for part in self._expanded(self._detect_format(self._start)):
                yield part
        if self._expander is not None:
            self._expander.finish()

    def _detect_format(self, start: bytes) -> bytes:
        """Detect the compression format from the first bytes. Create an expander for a compressed file.

        Return `start` unchanged. The caller must still expand these bytes or pass them on.
        """
        compression = compression_of(start)
        self._expander = None if compression is None else Expander(compression)
        self._start = None
        return start

    async def _expanded(self, piece: bytes) -> AsyncGenerator[bytes]:
        if self._expander is None:
            if piece:
                yield piece
            return
        parts = self._expander.feed(piece)
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            yield part
