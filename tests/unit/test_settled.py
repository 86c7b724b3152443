"""What finalization knows of settled lines: the right choice of them, in few bytes each."""

import sys
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.finalize.order import in_input_order
from activities.finalize.settled import Settled
from activities.finalize.spool import Spool
from batchwright.contracts.openai import Usage
from batchwright.rules.segments import Kind, Record, SegmentDamaged, SegmentWriter
from batchwright.rules.usage import Tokens

few = st.integers(0, 5)
records = st.builds(
    Record,
    kind=st.sampled_from([Kind.SETTLED, Kind.SETTLED, Kind.ATTEMPT]),
    offset=few,
    payload=st.binary(max_size=9).filter(lambda payload: b"\n" not in payload),
    success=st.booleans(),
    usage=st.builds(Tokens, few, few, few, few),
    final=st.booleans(),
)
segments = st.dictionaries(st.text("abc", max_size=3), st.lists(records, max_size=5), max_size=6)


def segment(written: list[Record]) -> bytes:
    writer = SegmentWriter()
    for record in written:
        writer.add(record)
    return writer.finish()


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 9))
def test_entries_are_in_input_order_however_few_are_sorted_at_once(found: list[int], run: int) -> None:
    offsets = array("q", found)
    assert list(in_input_order(offsets, run)) == sorted(range(len(found)), key=found.__getitem__)


@given(segments)
def test_of_each_line_the_best_result_is_chosen_and_its_tokens_count(
    written: dict[str, list[Record]],
) -> None:
    best: dict[int, tuple[bool, str, int, Record]] = {}
    for name, some in written.items():
        for number, record in enumerate(some):
            if record.kind is Kind.SETTLED:
                candidate = (not record.success, name, number, record)
                best[record.offset] = min(best.get(record.offset, candidate), candidate)
    chosen = [best[offset][-1] for offset in sorted(best)]
    with Spool(None) as spool, Settled(spool) as settled:
        counts = [settled.take(name, segment(some)) for name, some in written.items()]
        choice = settled.choose()
        files = [b"".join(settled.blocks(part)) for part in (choice.output, choice.error)]
        payloads = [settled.payload(entry) for entry in choice.output]
        finals = settled.finals(choice)
    assert counts == [sum(record.kind is Kind.SETTLED for record in some) for some in written.values()]
    assert payloads == [record.payload for record in chosen if record.success]
    for success, content in zip((True, False), files, strict=True):
        assert content == b"".join(one.payload + b"\n" for one in chosen if one.success is success)
    sums = [sum(column) for column in zip(*(tokens_of(record) for record in chosen), strict=True)] or [0] * 4
    assert choice.usage == Usage(
        input_tokens=sums[0], cached_tokens=sums[1], output_tokens=sums[2], reasoning_tokens=sums[3]
    )
    assert [offset for offset, _ in finals] == sorted(
        record.offset
        for failed, name, _, chosen_one in best.values()
        if failed
        for record in written[name]
        if record.kind is Kind.ATTEMPT and record.final and record.offset == chosen_one.offset
    )


def tokens_of(record: Record) -> tuple[int, int, int, int]:
    usage = record.usage
    return usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens


def test_a_settled_line_takes_few_bytes(tmp_path: Path) -> None:
    lines = 20_000
    with Spool(tmp_path) as spool, Settled(spool) as settled:
        for first in range(0, lines, 1000):
            written = [Record(Kind.SETTLED, offset, b"{}", True) for offset in range(first, first + 1000)]
            settled.take(f"{first:06}", segment(written))
        assert held(settled) < 25 * lines
    assert held(settled) < 10_000


def held(settled: Settled) -> int:
    """Bytes of its arrays."""
    return sum(sys.getsizeof(column) for column in vars(settled).values())


def test_a_record_that_is_damaged_behind_many_good_ones_is_told_with_its_segment(tmp_path: Path) -> None:
    data = bytearray(segment([Record(Kind.SETTLED, offset, b"{}") for offset in range(5000)]))
    data[4800 * 38] ^= 1
    damaged = pytest.raises(SegmentDamaged, match=r"Segment 'a' is damaged")
    with Spool(tmp_path) as spool, Settled(spool) as settled, damaged:
        settled.take("a", bytes(data))
