"""The index of settled lines selects the right results, and needs few bytes for each line."""

import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.activities.stored_results import result_spool
from batchwright.activities.stored_results.input_order_index import ResultIndex
from batchwright.activities.stored_results.result_spool import ResultSpool
from batchwright.contracts.terms import Usage
from batchwright.rules import growing_bytes
from batchwright.rules.results.segment_format import RecordKind, SegmentDamaged, SegmentRecord, SegmentWriter
from batchwright.rules.results.token_usage import Tokens
from batchwright.storage.spill import spilled_bytes

LINES = 20_000
few = st.integers(0, 5)
records = st.builds(
    SegmentRecord,
    kind=st.sampled_from([RecordKind.SETTLED, RecordKind.SETTLED, RecordKind.ATTEMPT]),
    offset=few,
    payload=st.binary(max_size=9).filter(lambda payload: b"\n" not in payload),
    success=st.booleans(),
    usage=st.builds(Tokens, few, few, few, few),
    final=st.booleans(),
)
segments = st.dictionaries(st.text("abc", max_size=3), st.lists(records, max_size=5), max_size=6)


def segment(written: list[SegmentRecord]) -> bytes:
    writer = SegmentWriter()
    for record in written:
        writer.add(record)
    return writer.finish()


@given(segments)
def test_the_best_result_of_each_line_is_selected_and_its_tokens_count(
    written: dict[str, list[SegmentRecord]],
) -> None:
    best: dict[int, tuple[bool, str, int, SegmentRecord]] = {}
    for name, some in written.items():
        for number, record in enumerate(some):
            if record.kind is RecordKind.SETTLED:
                candidate = (not record.success, name, number, record)
                best[record.offset] = min(best.get(record.offset, candidate), candidate)
    chosen = [best[offset][-1] for offset in sorted(best)]
    with ResultSpool(None) as spool, ResultIndex(spool) as index:
        counts = [index.add_segment(name, segment(some)) for name, some in written.items()]
        selected = index.select()
        files = [b"".join(index.line_blocks(part)) for part in (selected.output, selected.error)]
        payloads = [index.line(entry) for entry in selected.output]
        dead_letters = list(index.dead_letters(selected))
    assert counts == [sum(record.kind is RecordKind.SETTLED for record in some) for some in written.values()]
    assert payloads == [record.payload for record in chosen if record.success]
    for success, content in zip((True, False), files, strict=True):
        assert content == b"".join(one.payload + b"\n" for one in chosen if one.success is success)
    sums = [sum(column) for column in zip(*(tokens_of(record) for record in chosen), strict=True)] or [0] * 4
    assert selected.usage == Usage(
        input_tokens=sums[0], cached_tokens=sums[1], output_tokens=sums[2], reasoning_tokens=sums[3]
    )
    assert [offset for offset, _ in dead_letters] == sorted(
        record.offset
        for failed, name, _, chosen_one in best.values()
        if failed
        for record in written[name]
        if record.kind is RecordKind.ATTEMPT and record.final and record.offset == chosen_one.offset
    )


def tokens_of(record: SegmentRecord) -> tuple[int, int, int, int]:
    usage = record.usage
    return usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens


def test_a_settled_line_takes_few_bytes_of_memory_and_none_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 24 * LINES < held(tmp_path) < 60 * LINES
    monkeypatch.setattr(result_spool, "_MEMORY_BYTES", 0)
    monkeypatch.setattr(spilled_bytes, "_CHUNK_BYTES", 1_000)
    monkeypatch.setattr(growing_bytes, "_RUN_ROWS", 1_000)
    assert held(tmp_path) < 3 * LINES


def test_a_segment_takes_little_more_memory_than_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_spool, "_MEMORY_BYTES", 0)
    monkeypatch.setattr(spilled_bytes, "_CHUNK_BYTES", 1_000)
    names = [f"results/model/{number:06}/segment" for number in range(2_000)]
    data = successes([0])
    with ResultSpool(tmp_path) as spool, ResultIndex(spool) as index:
        index.add_segment(names.pop(), data)
        tracemalloc.start()
        try:
            for name in names:
                index.add_segment(name, data)
            selected = index.select()
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert selected.usages["results/model"].requests == 1
    assert held < 40 * len(names)


def successes(offsets: Iterable[int]) -> bytes:
    return segment([SegmentRecord(RecordKind.SETTLED, offset, b"{}", True) for offset in offsets])


def held(tmp_path: Path) -> int:
    """Add and select `LINES` successes. Return how many bytes of memory are in use after that."""
    with ResultSpool(tmp_path) as spool, ResultIndex(spool) as index:
        tracemalloc.start()
        try:
            for first in range(0, LINES, 1000):
                offsets = range(first, first + 1000)
                index.add_segment(f"{first:06}", successes(offsets))
            assert index.select().lines == LINES
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()


def test_a_damaged_record_after_many_good_ones_is_reported_with_its_segment(tmp_path: Path) -> None:
    data = bytearray(segment([SegmentRecord(RecordKind.SETTLED, offset, b"{}") for offset in range(5000)]))
    data[4800 * 38] ^= 1
    damaged = pytest.raises(SegmentDamaged, match=r"Segment 'a' is damaged")
    with ResultSpool(tmp_path) as spool, ResultIndex(spool) as index, damaged:
        index.add_segment("a", bytes(data))
