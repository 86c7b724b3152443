"""Split the bytes of an input file into lines, each with its number and position."""

from collections.abc import Iterator
from io import BytesIO

from msgspec import Struct

BOM = b"\xef\xbb\xbf"
_NEWLINE = ord("\n")


class InputLine(Struct, frozen=True, gc=False):
    """One line of an input file, as `LineSplitter` yields it.

    `length` is the number of bytes, including the newline. If the last line of the file has no newline, its
    `length` is one more than its number of bytes.
    """

    number: int  # counted from 1, including blank lines
    offset: int
    length: int
    data: bytes | None  # without the newline, with a carriage return if any; None if it exceeds the limit


class LineSplitter:
    """A splitter of a file into lines. It receives the file in pieces.

    Lines end with LF or CRLF. Blank lines and a byte order mark are skipped. The splitter stores only the
    unfinished line in memory, at most `max_line_bytes`. If a line is longer, it is yielded without its data.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max = max_line_bytes
        self._parts: list[bytes] = []
        self._held = 0  # bytes of the unfinished line, including dropped bytes over the limit
        self._number = 0
        self._offset = 0
        self._start = b""  # first bytes of the file, while they may be part of a byte order mark
        self._started = False

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the unfinished line that are in memory."""
        return self._held if self._held <= self._max else 0

    def feed(self, piece: bytes) -> Iterator[InputLine]:
        """Yield the lines that end in `piece`, which contains the next bytes of the file.

        Read all lines from the iterator before you call `feed` again.
        """
        if not self._started:
            piece = self._skip_mark(piece)
        for part in BytesIO(piece):
            if part[-1] != _NEWLINE:
                self._hold(part)
                return
            line = self._end_line(part[:-1])
            if line is not None:
                yield line

    def finish(self) -> Iterator[InputLine]:
        """Yield the last line if the file does not end with a newline."""
        if not self._started:
            self._started = True
            self._hold(self._start)
        if self._held:
            line = self._end_line(b"")
            if line is not None:
                yield line

    def _skip_mark(self, piece: bytes) -> bytes:
        piece = self._start + piece
        if len(piece) < len(BOM) and BOM.startswith(piece):
            self._start = piece
            return b""
        self._started = True
        self._start = b""
        if not piece.startswith(BOM):
            return piece
        self._offset = len(BOM)
        return piece[len(BOM) :]

    def _hold(self, part: bytes) -> None:
        self._held += len(part)
        if self._held > self._max:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _end_line(self, part: bytes) -> InputLine | None:
        if self._held:
            self._hold(part)
            size, data = self._held, b"".join(self._parts)
            self._parts.clear()
            self._held = 0
        else:
            size, data = len(part), part
        self._number += 1
        offset = self._offset
        self._offset += size + 1
        if size > self._max:
            return InputLine(self._number, offset, size + 1, None)
        if not data or data.isspace():
            return None
        return InputLine(self._number, offset, size + 1, data)
