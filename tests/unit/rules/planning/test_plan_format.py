"""Encoded plans and slice tables have fixed sizes and keep all data. Damaged ones are detected."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules.planning.plan_format import (
    ENTRY_BYTES,
    SLICE_BYTES,
    PlanDamaged,
    PlanEntry,
    SliceRecord,
    pack_entry,
    pack_slice,
    unpack_slice,
    walk_entries,
)

u32 = st.integers(0, 2**32 - 1)
entries = st.builds(PlanEntry, offset=st.integers(0, 2**63 - 1), length=u32, prefix_hash=u32)
slices = st.builds(
    SliceRecord,
    number=u32,
    first_entry=u32,
    shard_offset=st.integers(0, 2**64 - 1),
    entries=u32,
    shard_bytes=u32,
    work_units=st.integers(0, 2**64 - 1),
)


@given(st.lists(entries, max_size=20))
def test_entries_are_read_in_order(plan: list[PlanEntry]) -> None:
    assert list(walk_entries(b"".join(map(pack_entry, plan)))) == plan


def test_an_entry_has_the_documented_format() -> None:
    assert pack_entry(PlanEntry(1, 2, 3)) == struct.pack("<qII", 1, 2, 3)
    assert 50_000 * ENTRY_BYTES == 800_000


@given(st.integers(1, ENTRY_BYTES - 1))
def test_half_an_entry_is_damaged(length: int) -> None:
    with pytest.raises(PlanDamaged, match=f"{ENTRY_BYTES + length} bytes"):
        walk_entries(bytes(ENTRY_BYTES + length))


@given(slices)
def test_slices_are_read_as_written(record: SliceRecord) -> None:
    packed = pack_slice(record)
    assert len(packed) == SLICE_BYTES
    assert unpack_slice(packed, record.number) == record


@given(slices)
def test_a_slice_in_the_wrong_position_is_damaged(record: SliceRecord) -> None:
    with pytest.raises(PlanDamaged, match=f"holds slice {record.number}"):
        unpack_slice(pack_slice(record), record.number + 1)


def test_a_table_that_ends_early_is_damaged() -> None:
    with pytest.raises(PlanDamaged, match="slice 7: a record of 5 bytes"):
        unpack_slice(bytes(5), 7)
