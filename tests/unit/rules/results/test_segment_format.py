"""Segments (objects with results): written records can be read again, and any damage is detected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules.results.segment_format import (
    TRAILER_BYTES,
    IndexEntry,
    RecordKind,
    SegmentDamaged,
    SegmentRecord,
    SegmentWriter,
    locate_records,
    tail_bytes,
)
from batchwright.rules.results.token_usage import Tokens
from tests.segments import read_index, read_records

tokens = st.integers(0, 2**32 - 1)
usages = st.builds(
    Tokens, input_tokens=tokens, cached_tokens=tokens, output_tokens=tokens, reasoning_tokens=tokens
)
records = st.builds(
    SegmentRecord,
    kind=st.sampled_from(RecordKind),
    offset=st.integers(0, 2**62),
    payload=st.binary(max_size=40),
    success=st.booleans(),
    usage=usages,
)


def segment(written: list[SegmentRecord]) -> bytes:
    writer = SegmentWriter()
    for record in written:
        writer.add(record)
    return writer.finish()


@given(st.lists(records, max_size=8))
def test_records_are_read_in_order(written: list[SegmentRecord]) -> None:
    assert list(read_records(segment(written))) == written


@given(st.lists(records, max_size=8))
def test_the_index_points_at_every_payload(written: list[SegmentRecord]) -> None:
    data = segment(written)
    found = [
        (e.kind, e.offset, data[e.position : e.position + e.length], e.success) for e in read_index(data)
    ]
    assert found == [(r.kind, r.offset, r.payload, r.success) for r in written]


@given(st.lists(records, max_size=8))
def test_locating_agrees_with_the_index(written: list[SegmentRecord]) -> None:
    data = segment(written)
    located = [
        IndexEntry(RecordKind(place.kind), place.success, place.offset, place.length, place.position)
        for place in locate_records(data)
    ]
    assert located == read_index(data)


@given(st.lists(records, max_size=4), st.data())
def test_no_changed_bit_goes_unnoticed(written: list[SegmentRecord], data: st.DataObject) -> None:
    whole = segment(written)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(SegmentDamaged):
        list(read_records(bytes(damaged)))


@given(st.lists(records, max_size=4), st.data())
def test_a_truncated_segment_is_damaged(written: list[SegmentRecord], data: st.DataObject) -> None:
    whole = segment(written)
    with pytest.raises(SegmentDamaged):
        read_index(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize("trailer", [slice(-TRAILER_BYTES + 1, None), slice(-TRAILER_BYTES - 1, -1)])
def test_bytes_that_are_not_the_whole_end_of_a_segment_are_damaged(trailer: slice) -> None:
    whole = segment([])
    with pytest.raises(SegmentDamaged, match="the footer is damaged"):
        tail_bytes((b"x" + whole)[trailer])


def test_a_segment_without_records_is_whole() -> None:
    assert list(read_records(segment([]))) == []


def test_the_writer_reports_its_size() -> None:
    writer = SegmentWriter()
    writer.add(SegmentRecord(RecordKind.SETTLED, 0, b"12345"))
    assert len(writer) == 1
    assert writer.size == len(writer.finish()) - 24 - 24  # one index entry and the trailer


def test_token_counts_above_the_maximum_are_capped() -> None:
    record = SegmentRecord(RecordKind.SETTLED, 0, b"", usage=Tokens(input_tokens=2**40))
    (read,) = read_records(segment([record]))
    assert read.usage == Tokens(input_tokens=2**32 - 1)
