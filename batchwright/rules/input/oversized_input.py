"""Divide an input that is too large for one batch into parts. Each part becomes the input of one batch.

The batches of all parts form a group. The metadata of each batch contains the group's id and the part's
number. So a group needs no database row of its own.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import IO, NamedTuple

import msgspec

from batchwright.rules.growing_bytes import GrowingBytes, NewBytes
from batchwright.rules.input.compression import MAGIC_BYTES, compression_of
from batchwright.rules.input.custom_id_uniqueness import LineIds
from batchwright.rules.input.line_splitter import InputLine, LineSplitter
from batchwright.rules.json_text import replace_lone_surrogates

GROUP_KEY = "batchwright.group"
PART_KEY = "batchwright.part"
GROUP_PREFIX = "group_"
_PIECE_BYTES = 1024 * 1024


class PartLimits(NamedTuple):
    """The limits of one batch. A large input file is divided into parts that keep these limits.

    The defaults are OpenAI's limits.
    """

    lines: int = 50_000
    file_bytes: int = 200 * 1024 * 1024


class InputPart(NamedTuple):
    """A part of a large input file, which becomes the input of one batch.

    The part consists of whole lines. `start` is the position of its first byte, and `end` is the position
    after its last byte. `lines` is the number of lines that are not blank; 0 for a compressed file.
    """

    start: int
    end: int
    lines: int


class DuplicateCustomId(ValueError):
    """Raised if two lines of an input have the same custom id. The message names the second line."""


def divide(file: IO[bytes], limits: PartLimits, new_bytes: NewBytes = GrowingBytes) -> list[InputPart]:
    """Divide an input file into as few parts as the limits allow. Blank lines between parts are left out.

    A single line that exceeds the limits becomes a part of its own. A compressed file is one part, because
    only the API expands it. The file is read from its beginning.

    Args:
        new_bytes: creates the storage for the hashes of custom ids, 20 bytes for each id. It is used after
            the first million ids.

    Raises:
        DuplicateCustomId: there are several parts, and a custom id occurs twice. If the two lines are in
            different parts, the API does not find this error, because it compares only the ids of one batch.
    """
    parts, ids = list[InputPart](), LineIds(new_bytes)
    start, end, count = 0, 0, 0
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if compression_of(file.read(MAGIC_BYTES)):
        return [InputPart(0, size, 0)]
    duplicates = list[int]()  # the first repeated line of those that are found at once
    for line in _lines(file, limits.file_bytes):
        line_end = min(line.offset + line.length, size)
        if count and (count >= limits.lines or line_end - start > limits.file_bytes):
            parts.append(InputPart(start, end, count))
            start, count = line.offset, 0
        end, count = line_end, count + 1
        custom_id = _custom_id_of(line)
        if custom_id is not None and not ids.add(custom_id.encode(), line.number) and not duplicates:
            duplicates.append(line.number)
    parts.append(InputPart(start, end, count) if parts else InputPart(0, size, count))
    first = min(chain(duplicates, ids.repeated()), default=None) if len(parts) > 1 else None
    if first is not None:
        raise DuplicateCustomId(f"Line {first:,} has a custom id that an earlier line has.")
    return parts


def group_id(file: IO[bytes], creation: Sequence[object], key: str) -> str:
    """Return the id of the group of batches that are created from one large input file.

    The same file content, `creation` and `key` always give the same id. So a repeated command finds the
    batches that it has already created.

    Args:
        file: the input file.
        creation: all other values with which the batches are created, such as their metadata. They must be
            JSON values.
        key: idempotency key that the user has chosen; empty for none.
    """
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256")  # pyright: ignore[reportArgumentType]: only its readinto is used
    digest.update(json.dumps([creation, key], sort_keys=True).encode())
    return f"{GROUP_PREFIX}{digest.hexdigest()[:32]}"


def is_group(id: str) -> bool:
    """Return True if the id belongs to a group of batches, and False if it belongs to a single batch.

    A group is the batches of one large input file, one for each part of it.
    """
    return id.startswith(GROUP_PREFIX)


def part_metadata(metadata: Mapping[str, str] | None, group: str, number: int, count: int) -> dict[str, str]:
    """Return the metadata of a batch that runs one part of a large input file.

    This is `metadata` with two additional values: the id of the group (the batches of all parts), and the
    number of the part together with the number of all parts, such as "2/3".

    Args:
        metadata: the metadata that the user has chosen for all batches of the group.
        group: id of the group.
        number: number of the part, from 1.
        count: number of all parts of the file.
    """
    return {**(metadata or {}), GROUP_KEY: group, PART_KEY: f"{number}/{count}"}


def part_number(metadata: Mapping[str, str] | None) -> tuple[int, int]:
    """Return the number of the part that a batch runs, and the total number of parts of the large input.

    Both are read from the metadata of the batch. The first part has number 1.

    Raises:
        ValueError: the metadata does not belong to a part.
    """
    number, _, count = (metadata or {}).get(PART_KEY, "").partition("/")
    return int(number), int(count)


class FoundBatch(NamedTuple):
    """A batch whose metadata contains the id of a group (the batches of one large input).

    `is_retry` is True if this batch retries lines of another batch in the group.
    """

    id: str
    input_file_id: str
    is_retry: bool


def whole_input_ids(batches: Sequence[FoundBatch]) -> list[str]:
    """Return the ids of those batches of a group that process a whole part of the input, in the given order.

    A group is the batches of one large input. Two kinds of batches have only some lines of a part, so they
    are left out: batches that retry failed lines of another batch, and batches that resume such a retry.

    Args:
        batches: all batches of the group: one for each part, and all batches that resume or retry another
            batch.
    """
    partial = {batch.input_file_id for batch in batches if batch.is_retry}
    return [batch.id for batch in batches if batch.input_file_id not in partial]


class PartFile(io.RawIOBase):
    """A readable file with the bytes of one part of an input. The bytes are read from the input file.

    Closing this file does not close the input file, which must stay open while this file is read.
    """

    def __init__(self, file: IO[bytes], part: InputPart) -> None:
        self._file, self._part = file, part
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        size = self._part.end - self._part.start
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: size}[whence]
        return self._at

    def readinto(self, buffer: "memoryview[int]") -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        start = self._part.start + self._at
        self._file.seek(start)
        data = self._file.read(min(len(buffer), max(self._part.end - start, 0)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _InputLine(msgspec.Struct):
    custom_id: str


_DECODER = msgspec.json.Decoder(_InputLine)


def _custom_id_of(line: InputLine) -> str | None:
    """Return the custom id of a line; None if it is missing or invalid. The API reports this error later."""
    try:
        return None if line.data is None else _DECODER.decode(replace_lone_surrogates(line.data)).custom_id
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _lines(file: IO[bytes], max_line_bytes: int) -> Iterable[InputLine]:
    splitter = LineSplitter(max_line_bytes)
    file.seek(0)
    while piece := file.read(_PIECE_BYTES):
        yield from splitter.feed(piece)
    yield from splitter.finish()
