"""Write and read the binary format of a plan and of a slice table.

All records have a fixed size and are little-endian. A plan lists a model's lines in dispatch order. A slice
is a range of a plan that a worker sends.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

_ENTRY = struct.Struct("<qII")
_SLICE = struct.Struct("<IIQIIQ")
ENTRY_BYTES = _ENTRY.size  # 16
SLICE_BYTES = _SLICE.size  # 32


class PlanDamaged(ValueError):
    """Raised if stored bytes are not a valid plan or slice table. A retry does not help.

    A plan lists a model's lines in dispatch order (the order of sending). A slice table lists the slices
    (ranges) of a plan.
    """


class PlanEntry(NamedTuple):
    """One line in a plan, which lists a model's lines in dispatch order (the order of sending).

    Attributes:
        offset: position of the line in the input in bytes, which identifies the line.
        length: length of the line in bytes, with the newline.
        prefix_hash: hash of the line's system prompt; 0 if the line has no system prompt.
    """

    offset: int
    length: int
    prefix_hash: int


class SliceRecord(NamedTuple):
    """The position and size of a slice (part of a model's lines) in the plan and in the shard.

    The plan lists the model's lines in the order of sending. The shard is the stored object that contains
    the text of these lines.

    Attributes:
        number: number of the slice within its model, from 0.
        first_entry: number of lines in the plan that come before the slice.
        shard_offset: number of bytes in the shard that come before the slice.
        entries: number of lines of the slice.
        shard_bytes: size of these lines, with newlines.
        work_units: estimated cost of the slice's requests.
    """

    number: int
    first_entry: int
    shard_offset: int
    entries: int
    shard_bytes: int
    work_units: int


def pack_entry(entry: tuple[int, int, int]) -> bytes:
    """Return the 16 bytes for one line in a plan (the list of a model's lines).

    Args:
        entry: offset and length of the line in the input in bytes, and the hash of its system prompt.
    """
    return _ENTRY.pack(*entry)


def walk_entries(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield each line in a plan as (offset in the input, length, hash of the system prompt).

    Offset and length are in bytes.

    Raises:
        PlanDamaged: `data` does not consist of whole records of 16 bytes.
    """
    if len(data) % ENTRY_BYTES:
        raise PlanDamaged(f"a plan of {len(data)} bytes is not a multiple of {ENTRY_BYTES}")
    return _ENTRY.iter_unpack(data)


def pack_slice(record: SliceRecord) -> bytes:
    return _SLICE.pack(*record)


def unpack_slice(data: bytes, number: int) -> SliceRecord:
    """Return the record of the slice with this number, decoded from its bytes in the slice table.

    Args:
        data: the SLICE_BYTES bytes at `number * SLICE_BYTES` in the table.
        number: number of the slice within its model, from 0.

    Raises:
        PlanDamaged: `data` has another length, or is the record of another slice.
    """
    if len(data) != SLICE_BYTES:
        raise PlanDamaged(f"slice {number}: a record of {len(data)} bytes instead of {SLICE_BYTES}")
    record = SliceRecord(*_SLICE.unpack(data))
    if record.number != number:
        raise PlanDamaged(f"slice {number}: the table holds slice {record.number} in its place")
    return record
