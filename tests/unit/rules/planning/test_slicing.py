"""How a plan (the order of a model's lines) is divided into slices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from batchwright.rules.input.line_parser import fast_parse, read_body
from batchwright.rules.input.line_splitter import InputLine
from batchwright.rules.planning.plan_format import SliceRecord
from batchwright.rules.planning.request_work import MAX_WORK_UNITS, prompt_bytes, work_units
from batchwright.rules.planning.slicing import (
    MAX_LARGE_SLICE_BYTES,
    MIN_LARGE_SLICE_LINES,
    Slicer,
    lines_alike,
    min_equal_slice_lines,
)

PLANS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20)), max_size=60)


def cut(plan: list[tuple[int, int]], *, lines: int = 3, size: int = 60, units: int = 30) -> list[SliceRecord]:
    slicer = Slicer(lines, size, units)
    slices = [slicer.add(length, cost) for length, cost in plan]
    return [record for record in [*slices, slicer.finish()] if record is not None]


def cut_in_shares(lines: int, *, length: int = 100, most: int = 1024, fewest: int = 32) -> list[int]:
    """Divide a plan with `lines` lines into slices of `fewest` to `most` lines. Return the number of lines of
    each slice.

    `length` is the number of bytes of each line.
    """
    slicer = Slicer(most, 4 * MAX_LARGE_SLICE_BYTES, plan_lines=lines, fewest=fewest)
    slices = [*(slicer.add(length, 1) for _ in range(lines)), slicer.finish()]
    return [record.entries for record in slices if record is not None]


def cut_groups(*groups: int) -> list[int]:
    """Divide a plan into slices. Return the number of lines of each slice.

    `groups` are the numbers of lines that have the same system prompt, in the order of the plan.
    """
    slicer = Slicer(1024, plan_lines=sum(groups), fewest=min_equal_slice_lines(sum(groups)))
    alike = lines_alike([group for group, lines in enumerate(groups, 1) for _ in range(lines)])
    slices = [slicer.add(100, 1, count) for count in alike]
    return [record.entries for record in (*slices, slicer.finish()) if record is not None]


def test_the_first_bound_reached_ends_a_slice() -> None:
    assert cut([(10, 1)] * 4 + [(50, 1), (1, 30), (1, 1)]) == [
        SliceRecord(number=0, first_entry=0, shard_offset=0, entries=3, shard_bytes=30, work_units=3),
        SliceRecord(number=1, first_entry=3, shard_offset=30, entries=2, shard_bytes=60, work_units=2),
        SliceRecord(number=2, first_entry=5, shard_offset=90, entries=1, shard_bytes=1, work_units=30),
        SliceRecord(number=3, first_entry=6, shard_offset=91, entries=1, shard_bytes=1, work_units=1),
    ]


def test_a_line_above_every_bound_is_its_own_slice() -> None:
    assert [record.entries for record in cut([(1, 1), (500, 500), (1, 1)])] == [1, 1, 1]


def test_a_plan_without_lines_has_no_slices() -> None:
    assert cut([]) == []


@given(PLANS)
def test_slices_partition_the_plan(plan: list[tuple[int, int]]) -> None:
    entry = offset = 0
    for number, record in enumerate(cut(plan)):
        part = plan[record.first_entry : record.first_entry + record.entries]
        assert (record.number, record.first_entry, record.shard_offset) == (number, entry, offset)
        assert record.shard_bytes == sum(length for length, _ in part)
        assert record.work_units == sum(units for _, units in part)
        entry, offset = entry + record.entries, offset + record.shard_bytes
    assert entry == len(plan)


@given(PLANS)
def test_no_slice_exceeds_a_bound_unless_it_is_one_line(plan: list[tuple[int, int]]) -> None:
    for record in cut(plan):
        within = record.entries <= 3 and record.shard_bytes <= 60 and record.work_units <= 30
        assert within or record.entries == 1


def test_a_large_plan_has_large_slices_first_and_small_ones_last() -> None:
    sizes = cut_in_shares(50_000)
    assert sizes[:30] == [1024] * 30
    assert sizes[-5:-1] == [MIN_LARGE_SLICE_LINES] * 4
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == 60


@pytest.mark.parametrize("lines", [1600, 4000, 16_384, 32_768])
def test_a_plan_that_is_not_large_has_equal_slices_and_smaller_ones_last(lines: int) -> None:
    sizes = cut_in_shares(lines)
    assert sizes[:28] == [lines // 32] * 28
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-2] == max(8, lines // 64)
    assert len(sizes) <= 36


@pytest.mark.parametrize("lines", [512, 4_096, 16_384])
def test_no_slice_of_a_plan_takes_long_because_the_last_one_to_start_may_be_any(lines: int) -> None:
    assert max(cut_in_shares(lines)) <= max(32, lines // 32)


def test_lines_with_the_same_system_prompt_are_in_one_slice_except_in_the_last_small_slices() -> None:
    sizes = [45, 60, 52, 41, 66, 38, 50, 48, 55, 40, 47, 58]
    assert cut_groups(*sizes)[:11] == sizes[:11]
    assert cut_groups(*[20] * 30)[:13] == [40] * 13
    assert cut_groups(*[10] * 60)[:17] == [30] * 17


def test_lines_that_have_no_system_prompt_are_not_alike() -> None:
    assert lines_alike([7, 7, 7, 0, 0, 8, 7]) == [3, 2, 1, 1, 1, 1, 1]
    assert lines_alike([]) == []


def test_large_groups_and_lines_with_system_prompts_of_their_own_do_not_change_the_length_of_slices() -> None:
    assert cut_groups(600) == cut_in_shares(600)
    assert cut_groups(*[1] * 600) == cut_in_shares(600)
    assert cut_groups(30, 18) == [48]


def test_a_small_plan_has_fewer_slices_instead_of_smaller_ones() -> None:
    assert cut_in_shares(400) == [34] * 8 + [32, 24, 18, 14, 10, 8, 8, 8, 6]
    assert cut_in_shares(63) == [63]
    assert cut_in_shares(1000, fewest=256) == [250, 188, 141, 106, 79, 64, 64, 64, 44]


def test_a_very_small_plan_of_long_requests_has_several_slices() -> None:
    def cut_of(lines: int, units: int) -> list[int]:
        slicer = Slicer(1024, plan_lines=lines, fewest=min_equal_slice_lines(lines))
        records = [slicer.add(1000, units) for _ in range(lines)]
        return [record.entries for record in (*records, slicer.finish()) if record is not None]

    assert cut_of(60, 42) == [18, 18, 18, 6]
    assert cut_of(60, 1000) == [16, 16, 16, 12]
    assert cut_of(60, 4) == [60]
    assert cut_of(16, 1000) == [16]


def test_equal_slices_are_larger_if_a_batch_has_many() -> None:
    assert [min_equal_slice_lines(total) for total in (1_000, 16_000, 50_000, 1_000_000)] == [
        32,
        62,
        195,
        256,
    ]


def test_a_bound_below_the_minimum_applies_to_every_slice() -> None:
    assert cut_in_shares(20_000, most=100) == [100] * 200


def test_a_slice_of_more_lines_than_the_least_is_small_in_bytes() -> None:
    sizes = cut_in_shares(50_000, length=2048)
    assert sizes[0] == MAX_LARGE_SLICE_BYTES // 2048
    assert cut_in_shares(50_000, length=10_000)[0] == MIN_LARGE_SLICE_LINES


@given(st.integers(1, 20_000), st.integers(1, 3_000))
def test_no_slice_is_more_than_a_share_of_what_is_left_nor_less_without_need(lines: int, most: int) -> None:
    left = lines
    for size in cut_in_shares(lines, length=1, most=most):
        share = -(-lines // max(1, min(32, lines // 32)))
        if share > most:
            share = min(most, max(MIN_LARGE_SLICE_LINES, left // 8))
        elif share < lines:
            share = min(share, max(8, lines // 64, -(-left // 4)))
        assert size == min(left, share)
        left -= size
    assert left == 0


@pytest.mark.parametrize(
    ("body", "units"),
    [
        (b'{"input":"' + b"x" * 510 + b'"}', 2),
        (b'{"messages":[]}', 2),
        (b'{"prompt":"x","max_tokens":257}', 3),
        (b'{"prompt":"x","max_completion_tokens":1024,"max_tokens":1}', 5),
        (b'{"prompt":"x","max_output_tokens":513,"max_tokens":1}', 4),
        (b'{"prompt":"x","max_completion_tokens":257,"max_output_tokens":1024}', 3),
        (b'{"prompt":"x","max_completion_tokens":0,"max_tokens":257}', 3),
        (b'{"prompt":"x","max_tokens":-1}', 2),
        (b'{"prompt":"x","max_tokens":"many"}', 2),
        (b'{"prompt":"x","max_tokens":4000000000}', MAX_WORK_UNITS),
        (b"{}", 1),
    ],
)
def test_work_units_follow_the_prompt_and_the_requested_tokens(body: bytes, units: int) -> None:
    request = read_body(Raw(body))
    assert work_units(request, prompt_bytes(request)) == units
    [read_at_once] = fast_parse([InputLine(1, 0, 0, b'{"custom_id":"a","body":' + body + b"}")])
    if read_at_once is not None:
        assert work_units(read_at_once.body, prompt_bytes(read_at_once.body)) == units
