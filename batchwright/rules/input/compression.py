"""Expand gzip and zstd data piece by piece, in bounded memory."""

import re
import sys
import zlib
from collections.abc import Iterator
from enum import StrEnum
from typing import Protocol

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAGIC_BYTES = 4  # number of bytes at the start of a file from which its format is known
_PIECE_BYTES = 1024 * 1024
# Input is expanded in steps of so many bytes, because the rest of a step is copied after each member.
_STEP_BYTES = 16 * 1024
# A member costs up to 25 us even if it is empty. If there are more than _FREE_MEMBERS, they must have
# _LEAST_MEMBER_BYTES expanded bytes on average. Those that compressors write have far more.
_FREE_MEMBERS, _LEAST_MEMBER_BYTES = 1_000, 256
_MAX_WINDOW_LOG = 23  # 8 MiB, which all levels of zstd up to 19 keep to
_WINDOW_REASON = "it needs a window of more than 8 MiB, so compress it without --long and --ultra"
_GZIP_WBITS = 31  # a gzip header is required
_GZIP = re.compile(rb"\x1f\x8b")
# A frame, or a skippable frame, with which the files of parallel compressors begin.
_ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)


class Compression(StrEnum):
    """The format of a compressed file. The value is the format's name in the header Content-Encoding."""

    GZIP = "gzip"
    ZSTD = "zstd"


class DamagedArchive(ValueError):
    """Raised if compressed data is damaged or incomplete.

    The message is for the client. It names the position in the file and the line.
    """


def compression_of(start: bytes) -> Compression | None:
    """Detect the compression format of a file from its first MAGIC_BYTES bytes; None if it is not compressed.

    No JSON text begins with the same bytes as a compressed file.
    """
    if _GZIP.match(start):
        return Compression.GZIP
    return Compression.ZSTD if _ZSTD.match(start) else None


def expanded_name(name: str) -> str:
    """Return the name of a compressed file without its ending `.gz`, `.zst` or `.zstd`."""
    for ending in (".gz", ".zst", ".zstd"):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


class Expander:
    """A decompressor for one file, which it receives in pieces.

    The decompressor needs memory for one received piece, two expanded pieces, and the window of the format.
    The window is the last expanded bytes: 32 KiB for gzip, at most 8 MiB for zstd. A file can consist of
    several gzip members or zstd frames.
    """

    def __init__(self, compression: Compression) -> None:
        self._compression = compression
        self._member: _CompressedPart | None = None  # the gzip member or zstd frame that is being expanded
        self._members = self._received = self._expanded = self._lines = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decompress the next piece of the file. Yield the expanded bytes in pieces of at most 1 MiB.

        The caller must consume the iterator before it calls another method.

        Raises:
            DamagedArchive: the data is not valid, or there are too many gzip members or zstd frames. A file
                can have 1,000 of them, and one more for each 256 expanded bytes.
        """
        self._received += len(data)
        try:
            yield from _joined(self._pieces(data))
        except (zlib.error, zstd.ZstdError) as error:
            reason = _WINDOW_REASON if "memory" in str(error) else str(error)
            raise self._damaged(reason) from None

    def finish(self) -> None:
        """Check that the file is complete. Call this after the last piece.

        Raises:
            DamagedArchive: the end of the file is missing.
        """
        if self._member is not None:
            raise self._damaged("the file ends too early")

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _STEP_BYTES):
            step = data[start : start + _STEP_BYTES]
            while step:
                if self._member is None:
                    # Tapes and block devices leave zeros after a gzip member.
                    if self._members and self._compression is Compression.GZIP:
                        step = step.lstrip(b"\0")
                    if not step:
                        break
                    self._member = self._next_member()
                for piece in filter(None, self._member.expand(step)):
                    self._expanded += len(piece)
                    self._lines += piece.count(b"\n")
                    yield piece
                step = self._member.unused
                if self._member.is_complete:
                    self._member = None

    def _next_member(self) -> "_CompressedPart":
        self._members += 1
        if self._members > _FREE_MEMBERS + self._expanded // _LEAST_MEMBER_BYTES:
            raise self._damaged(
                f"it consists of {self._members} parts that have less than {_LEAST_MEMBER_BYTES} bytes on "
                "average, so expand it and compress it again as a whole"
            )
        return _MEMBERS[self._compression]()

    def _damaged(self, reason: str) -> DamagedArchive:
        return DamagedArchive(
            f"The {self._compression.value} file cannot be expanded: {reason}. This is within the first "
            f"{self._received} bytes of the file, in line {self._lines + 1} of the expanded file."
        )


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join small pieces of bytes into larger pieces of at most _PIECE_BYTES."""
    found, size = list[bytes](), 0
    for piece in pieces:
        if size + len(piece) > _PIECE_BYTES:
            yield b"".join(found)
            found, size = [], 0
        found.append(piece)
        size += len(piece)
    if found:
        yield b"".join(found)


class _CompressedPart(Protocol):
    """A decompressor for one gzip member or one zstd frame. A file may contain several of them."""

    def expand(self, data: bytes) -> Iterator[bytes]:
        """Decompress `data`, and yield the expanded bytes up to the end of this member or frame."""
        ...

    @property
    def is_complete(self) -> bool: ...

    @property
    def unused(self) -> bytes:
        """Bytes after the end of this member or frame, from the `data` of the last call of `expand`."""
        ...


class _GzipMember(_CompressedPart):
    def __init__(self) -> None:
        self._expander = zlib.decompressobj(_GZIP_WBITS)

    def expand(self, data: bytes) -> Iterator[bytes]:
        while data:
            yield self._expander.decompress(data, _PIECE_BYTES)
            data = self._expander.unconsumed_tail

    @property
    def is_complete(self) -> bool:
        return self._expander.eof

    @property
    def unused(self) -> bytes:
        return self._expander.unused_data


class _ZstdFrame(_CompressedPart):
    def __init__(self) -> None:
        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}
        self._expander = zstd.ZstdDecompressor(options=options)

    def expand(self, data: bytes) -> Iterator[bytes]:
        yield self._expander.decompress(data, _PIECE_BYTES)
        while not (self._expander.needs_input or self._expander.eof):
            yield self._expander.decompress(b"", _PIECE_BYTES)

    @property
    def is_complete(self) -> bool:
        return self._expander.eof

    @property
    def unused(self) -> bytes:
        return self._expander.unused_data


_MEMBERS: dict[Compression, type[_GzipMember] | type[_ZstdFrame]] = {
    Compression.GZIP: _GzipMember,
    Compression.ZSTD: _ZstdFrame,
}
