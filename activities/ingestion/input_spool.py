"""Spool: the copy of the input on the local disk.

The lines are checked when the input is read for the first time. Later they are read from the spool, in the
order of sending.
"""

import errno
import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

from batchwright.storage.base import StorageUnavailable
from batchwright.storage.spill.spool import Spool

_NO_LINE = (-1, 0)  # a position that is adjacent to no line


class InputSpool(Spool):
    def __init__(self, directory: Path | None) -> None:
        super().__init__(directory, "Ingestion")

    def try_to_use_file(self, file: FileIO) -> bool:
        """Use `file`, the stored input itself, as the spool, if both are on the same file system.

        If `file` is used, return True. The spool closes `file` at the end of its `with` block.

        If `file` is on another file system, reading lines from it may be too slow. In this case, close `file`
        and return False. The caller must then copy the input to the spool.
        """
        if os.fstat(file.fileno()).st_dev != os.fstat(self.file.fileno()).st_dev:
            file.close()
            return False
        self.file.close()
        self.file = file
        return True

    def read_line(self, offset: int, length: int) -> bytes:
        """Return the line at `offset`, with a newline.

        If the last line of the file has no newline, a newline is added to it.

        Args:
            length: length in bytes, including the newline.

        Raises:
            StorageUnavailable: the file cannot be read or is too short.
        """
        self.check_stopped()
        try:
            line = os.pread(self.file.fileno(), length, offset)
        except OSError as error:
            raise _unreadable(error) from error
        if (missing := length - len(line)) > 1:
            raise _unreadable(_truncated(missing, offset))
        return line + b"\n" if missing else line

    def read_lines(self, positions: Sequence[tuple[int, int]]) -> bytearray:
        """Read the lines at these positions, and return them joined.

        A position is an offset and a length in bytes. Adjacent lines are read together.

        Raises:
            StorageUnavailable: the file cannot be read or is too short.
        """
        self.check_stopped()
        try:
            return self._read_lines(positions)
        except OSError as error:
            raise _unreadable(error) from error

    def _read_lines(self, positions: Sequence[tuple[int, int]]) -> bytearray:
        lines = bytearray(sum([length for _, length in positions]))
        view, number = memoryview(lines), self.file.fileno()
        start = end = filled = 0
        for offset, length in (*positions, _NO_LINE):
            if offset != end:
                part = view[filled : filled + end - start]
                if (missing := len(part) - os.preadv(number, [part], start)) > 1:
                    raise _truncated(missing, start)
                if missing:
                    part[-1:] = b"\n"  # the file ends without a newline
                filled += len(part)
                start = offset
            end = offset + length
        return lines


def _truncated(missing: int, offset: int) -> OSError:
    return OSError(errno.EIO, f"{missing} bytes are missing at byte {offset}")


def _unreadable(error: OSError) -> StorageUnavailable:
    return StorageUnavailable(f"Ingestion cannot read the input's lines again: {error}.")
