"""The plan's formats (S0-18): entries, slice records, both fixed-size and little-endian."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

_ENTRY = struct.Struct("<qII")
_SLICE = struct.Struct("<IIQIIQ")
ENTRY_BYTES = _ENTRY.size  # 16
SLICE_BYTES = _SLICE.size  # 32


class PlanDamaged(ValueError):
    """The bytes are not a plan's or a slice table's; no retry mends them."""


class PlanEntry(NamedTuple):
    """A line of the input: its byte offset (its identity), length with newline, prompt prefix's FNV-32a."""

    offset: int
    length: int
    prefix_hash: int


class SliceRecord(NamedTuple):
    """A slice: which entries of the plan, which bytes of the shard."""

    number: int
    first_entry: int
    shard_offset: int
    entries: int
    shard_bytes: int
    work_units: int


def pack_entry(entry: tuple[int, int, int]) -> bytes:
    """The fields of a PlanEntry."""
    return _ENTRY.pack(*entry)


def unpack_entries(data: bytes) -> Iterator[PlanEntry]:
    """Raises PlanDamaged where `data` is not a whole number of entries."""
    return map(PlanEntry._make, walk_entries(data))


def walk_entries(data: bytes) -> Iterator[tuple[int, int, int]]:
    """The same in the plainest form."""
    if len(data) % ENTRY_BYTES:
        raise PlanDamaged(f"a plan of {len(data)} bytes is not a multiple of {ENTRY_BYTES}")
    return _ENTRY.iter_unpack(data)


def pack_slice(record: SliceRecord) -> bytes:
    return _SLICE.pack(*record)


def unpack_slice(data: bytes, number: int) -> SliceRecord:
    """The record of slice `number`, read from `SLICE_BYTES` at `number * SLICE_BYTES` of the table."""
    if len(data) != SLICE_BYTES:
        raise PlanDamaged(f"slice {number}: a record of {len(data)} bytes instead of {SLICE_BYTES}")
    record = SliceRecord(*_SLICE.unpack(data))
    if record.number != number:
        raise PlanDamaged(f"slice {number}: the table holds slice {record.number} in its place")
    return record
