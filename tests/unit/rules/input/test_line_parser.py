"""An input is split into lines, and the fields of a line are read."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from batchwright.rules.input.line_parser import (
    LineDamaged,
    ParsedLine,
    parse_line,
    read_body,
    read_fields,
    read_request,
    reread_body,
)
from batchwright.rules.input.line_splitter import BOM, InputLine, LineSplitter

LONGEST = 12
LINES = st.lists(st.sampled_from([b"", b" ", b"\r", b"a", b'{"a":1}', b"12345678901", b"\xff", b"x" * 20]))


def split(data: bytes, *, piece: int = 5, longest: int = LONGEST) -> list[InputLine]:
    splitter = LineSplitter(longest)
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    return [line for part in pieces for line in splitter.feed(part)] + list(splitter.finish())


def test_offsets_and_lengths_find_the_lines_again() -> None:
    data = b"one\n\ntwo\r\nthree"
    assert split(data) == [
        InputLine(number=1, offset=0, length=4, data=b"one"),
        InputLine(number=3, offset=5, length=5, data=b"two\r"),
        InputLine(number=4, offset=10, length=6, data=b"three"),
    ]


@pytest.mark.parametrize("piece", [1, 2, 3, 4, 100])
def test_a_byte_order_mark_is_no_part_of_the_first_line(piece: int) -> None:
    assert split(BOM + b"a\n", piece=piece) == [InputLine(number=1, offset=3, length=2, data=b"a")]


def test_half_a_byte_order_mark_is_a_line() -> None:
    assert split(BOM[:2], piece=1) == [InputLine(number=1, offset=0, length=3, data=BOM[:2])]


@pytest.mark.parametrize("data", [b"", b"\n\n", b" \t\r\n\r\n", BOM, BOM + b"\n"])
def test_blank_lines_are_ignored(data: bytes) -> None:
    assert split(data) == []


def test_a_line_of_the_maximum_length_is_returned_and_a_longer_one_only_counted() -> None:
    data = b"x" * LONGEST + b"\n" + b"y" * (LONGEST + 1) + b"\nz"
    assert split(data) == [
        InputLine(number=1, offset=0, length=LONGEST + 1, data=b"x" * LONGEST),
        InputLine(number=2, offset=LONGEST + 1, length=LONGEST + 2, data=None),
        InputLine(number=3, offset=2 * LONGEST + 3, length=2, data=b"z"),
    ]


@given(LINES, st.booleans(), st.integers(1, 30))
def test_chunks_of_any_size_give_the_same_lines(parts: list[bytes], ended: bool, piece: int) -> None:
    data = b"\n".join(parts) + (b"\n" if ended else b"")
    assert split(data, piece=piece) == split(data, piece=len(data) + 1)


@given(LINES)
def test_every_line_is_at_its_offset(parts: list[bytes]) -> None:
    data = b"\n".join(parts)
    for line in split(data):
        assert data.split(b"\n")[line.number - 1] == (data + b"\n")[line.offset :][: line.length - 1]
        assert line.data in (None, data[line.offset : line.offset + line.length - 1])


def test_a_body_is_returned_as_its_original_bytes() -> None:
    line = rb'{"custom_id":"\u00e4","url":"/v1/x","body": {"n":1.0e5,  "model" : "m" } ,"more":1}'
    body = b'{"n":1.0e5,  "model" : "m" }'
    assert parse_line(line + b"\r\n") == ParsedLine(custom_id="ä", model="m", url="/v1/x", body=body)
    assert read_request(line + b"\r\n") == ("ä", body)


def test_model_and_url_may_be_absent() -> None:
    assert parse_line(b'{"custom_id":"a","body":{}}') == ParsedLine("a", None, None, b"{}")


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"{}", b'{"custom_id":"a"}', b'{"custom_id":1,"body":{}}', b'{"custom_id":"a","body":[]}',
     b'{"custom_id":"a","body":{}', b'{"custom_id":"a","body":{"x":"\xff"}}', b'{"custom_id":"a","body":{"x":'
     + b"[" * 100_000],
)  # fmt: skip
def test_other_bytes_are_a_damaged_line(line: bytes) -> None:
    with pytest.raises(LineDamaged):
        parse_line(line)
    with pytest.raises(LineDamaged):
        read_request(line)


@given(st.binary())
def test_any_bytes_are_a_line_or_damaged(line: bytes) -> None:
    with contextlib.suppress(LineDamaged):
        parsed = parse_line(line)
        assert read_request(line) == (parsed.custom_id, parsed.body)


@pytest.mark.parametrize("first", [b"", b'"body":5,', b'"body":{"model":"a"},', b'"body":null,'])
def test_a_body_is_read_again_as_it_was_accepted(first: bytes) -> None:
    line = b'{"custom_id":"a",%b"body":{"model":"m","messages":[1]}}' % first
    body = read_fields(line).body
    assert isinstance(body, Raw)
    assert reread_body(line) == read_body(body)


@pytest.mark.parametrize("line", [b"{}", b'{"custom_id":"a"}'])
def test_a_line_without_a_body_cannot_be_read_again(line: bytes) -> None:
    with pytest.raises(LineDamaged):
        reread_body(line)
