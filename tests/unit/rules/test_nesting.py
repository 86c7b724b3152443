"""A limit of our own on how deeply JSON is nested. It does not depend on the version of Python."""

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchwright.rules import json_text
from batchwright.rules.input.line_parser import FastLine, fast_parse, read_new_fields
from batchwright.rules.input.line_splitter import InputLine
from batchwright.rules.json_text import MAX_NESTING, NestedTooDeeply, check_nesting, is_json


def arrays(levels: int, inside: bytes = b"1") -> bytes:
    return b"[" * levels + inside + b"]" * levels


def objects(levels: int) -> bytes:
    return b'{"key":' * levels + b"1" + b"}" * levels


@pytest.mark.parametrize("nested", [arrays, objects])
def test_json_may_be_nested_500_levels_deep_and_no_more(nested: Callable[[int], bytes]) -> None:
    assert is_json(nested(MAX_NESTING))
    assert not is_json(nested(MAX_NESTING + 1))
    assert not is_json(b'{"%b":%b}' % (b"a" * 20_000, nested(MAX_NESTING)))


def test_a_line_is_refused_by_both_parsers_if_it_is_nested_too_deeply() -> None:
    def line(levels: int) -> bytes:
        return b'{"custom_id":"a","body":{"model":"m","x":%b}}' % arrays(levels - 2)

    def read(data: bytes) -> FastLine | None:
        return fast_parse([InputLine(1, 0, len(data) + 1, data)])[0]

    assert read(line(MAX_NESTING)) is not None
    assert read_new_fields(line(MAX_NESTING)).custom_id is not None
    assert read(line(MAX_NESTING + 1)) is None
    with pytest.raises(NestedTooDeeply, match="more than 500 levels deep"):
        read_new_fields(line(MAX_NESTING + 1))


def test_brackets_in_strings_and_side_by_side_are_not_levels() -> None:
    text = rb'"a \" [[[{{{ \\"'
    check_nesting(b"[" + b",".join([text, b"[]", b"{}"] * 1_000) + b"]")
    check_nesting(arrays(MAX_NESTING, inside=b",".join([text] * 1_000)))
    with pytest.raises(NestedTooDeeply):
        check_nesting(arrays(MAX_NESTING + 1, inside=text))


def test_an_unfinished_text_is_left_to_its_parser() -> None:
    check_nesting(b'["' + b"[" * 5_000)
    assert not is_json(b'["' + b"[" * 5_000)
    with pytest.raises(NestedTooDeeply):
        check_nesting(b"[" * 5_000)


def depth_of(text: bytes) -> int:
    """Return how many objects and arrays are open at the same time at most, by reading the text
    byte by byte.
    """
    depth, most, is_string, at = 0, 0, False, 0
    while at < len(text):
        if text[at : at + 2] in (b"\\\\", b'\\"'):
            at += 2
            continue
        if text[at : at + 1] == b'"':
            is_string = not is_string
        elif not is_string:
            depth += text[at] in b"[{"
            depth -= text[at] in b"]}"
        most, at = max(most, depth), at + 1
    return most


PIECES = [b"[", b"]", b"{", b"}", b'"', b'""', b"\\", b'\\"', b"\\\\", b"a", b"[[[[[[[[", b"]]]]]]]]"]


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=80), most=st.integers(1, 30), slice=st.integers(1, 40)
)
@example(pieces=[b"["] * 8 + [b"]"] * 8, most=8, slice=40)
@example(pieces=[b"["] * 9 + [b"]"] * 9, most=8, slice=40)
@example(pieces=[b'"', b"[", b'"', b"["] * 9, most=8, slice=3)
def test_the_levels_are_those_that_are_counted_byte_by_byte(
    pieces: list[bytes], most: int, slice: int
) -> None:
    text = b" " * 2 * most + b"".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_SLICE", slice)
        if depth_of(text) > most:
            with pytest.raises(NestedTooDeeply):
                check_nesting(text, most)
        else:
            check_nesting(text, most)


def test_millions_of_short_strings_need_little_memory() -> None:
    text = b"[" + b'["["],' * 100_000 + b"1]"
    tracemalloc.start()
    try:
        check_nesting(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * len(text)
