"""Reads and writes the files of one input.

All names are resolved relative to the opened directory of the input, and symbolic links are not followed. So
a user who can write into the directory cannot make this program read or write files outside it.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from typing import BinaryIO

from pydantic import BaseModel, ValidationError

from batchwright.contracts.terms import Endpoint

_RECORD_BYTES = 64 * 1024
_NOT_PRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class InputFailed(Exception):
    """An input has failed and is not retried. The message is for the user, and is written to the input's
    `error.txt`.
    """


class FileName(StrEnum):
    """The names of the files in an input's directory."""

    INPUT = "input.jsonl"
    PROMPT = "prompt.txt"
    TYPE = "type.txt"
    OUTPUT = "output.jsonl"
    ERRORS = "errors.jsonl"
    RESULT = "result.txt"
    REASON = "error.txt"
    RECORD = "batch.json"


class BatchRecord(BaseModel):
    """The content of `batch.json`: the parameters and the id of an input's batch.

    The file is written before the batch is created.

    Attributes:
        key: idempotency key of the upload and of the batch. It is also in the batch's metadata.
        endpoint: endpoint of the batch.
        window: completion window of the batch, such as `24h`.
        bytes: size of the input in bytes when it was first read.
        batch: id of the batch; None until the API has returned it.
    """

    key: str
    endpoint: Endpoint
    window: str
    bytes: int
    batch: str | None = None


class InputDirectory:
    """The directory of one input. `fd` is a file descriptor of the opened directory."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self.name = name

    def exists(self, file: FileName) -> bool:
        return self.size(file) is not None

    def size(self, file: FileName) -> int | None:
        """Return the size of a file in bytes; None if the file does not exist."""
        try:
            return os.stat(file, dir_fd=self._fd, follow_symlinks=False).st_size
        except FileNotFoundError:
            return None

    def open(self, file: FileName) -> BinaryIO:
        """Open a file for reading.

        Raises:
            InputFailed: the file does not exist, cannot be read, or is not a regular file.
        """
        try:
            # Without O_NONBLOCK, opening a named pipe waits for a writer.
            fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._fd)
        except OSError as error:
            why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)
            raise InputFailed(f"{file} cannot be read: {why}.") from None
        opened = os.fdopen(fd, "rb") if stat.S_ISREG(os.fstat(fd).st_mode) else None
        if opened is None:
            os.close(fd)
            raise InputFailed(f"{file} cannot be read: it is not a regular file.")
        return opened

    def write(self, file: FileName, pieces: Iterable[bytes]) -> None:
        """Write a file under a temporary name, and rename it when it is complete and on the disk.

        Raises:
            InputFailed: the file cannot be written, for example because the disk is full. The incomplete file
                is deleted.
        """
        part = f"{file}.part"
        try:
            self.remove(part)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(part, flags, 0o666, dir_fd=self._fd), "wb") as out:
                for piece in pieces:
                    out.write(piece)
                out.flush()
                os.fsync(out.fileno())
            os.rename(part, file, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            os.fsync(self._fd)
        except OSError as error:
            with suppress(OSError):
                self.remove(part)
            raise InputFailed(
                f"{file} cannot be written: {error.strerror or error}. Solve this, then move the directory "
                "of the input to input/ready: it continues where it stopped."
            ) from None

    def remove(self, file: str) -> None:
        """Delete a file. Do nothing if it does not exist."""
        with suppress(FileNotFoundError):
            os.unlink(file, dir_fd=self._fd)

    def record(self) -> BatchRecord | None:
        """Return the content of `batch.json`; None if the file does not exist, because nothing was sent yet.

        Raises:
            InputFailed: the file cannot be read, or its content is not valid.
        """
        if not self.exists(FileName.RECORD):
            return None
        with self.open(FileName.RECORD) as file:
            content = file.read(_RECORD_BYTES)
        try:
            return BatchRecord.model_validate_json(content)
        except ValidationError:
            raise InputFailed(
                f"{FileName.RECORD} was not written by Batchwright. Remove it, and move the directory of the "
                "input to input/ready."
            ) from None

    def write_record(self, record: BatchRecord) -> None:
        """Write `batch.json`, which contains the parameters and the id of the batch that runs this input.

        Raises:
            InputFailed: the file cannot be written.
        """
        self.write(FileName.RECORD, [record.model_dump_json().encode() + b"\n"])


def printable(name: str) -> str:
    """Return a file name with `?` in place of control characters and of bytes that are not valid UTF-8."""
    return _NOT_PRINTABLE.sub("?", name)
