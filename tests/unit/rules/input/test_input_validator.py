"""Inputs that are too large, too deep or unusual: their validation errors, with bounded memory."""

import tracemalloc
from collections.abc import Iterator

import pytest

from batchwright.contracts.terms import Endpoint, Profile
from batchwright.rules.input.input_validator import ValidationReport, validate
from batchwright.rules.input.line_rules import InputLimits
from tests.unit.rules.bad_lines import a_line

MIB = 1024 * 1024


def report(pieces: Iterator[bytes], limits: InputLimits | None = None) -> ValidationReport:
    return validate(pieces, Endpoint.CHAT_COMPLETIONS, limits or InputLimits(), Profile.RELAXED)


def codes(found: ValidationReport) -> list[tuple[str, str | None, int | None]]:
    return [(error.code, error.param, error.line) for error in found.errors]


def changed(old: bytes, new: bytes) -> Iterator[bytes]:
    """Yield an input with two lines: a valid one, and one in which `old` is replaced by `new`."""
    yield a_line(custom_id="first") + b"\n" + a_line().replace(old, new)


def good_lines(count: int) -> Iterator[bytes]:
    """Yield `count` valid lines in pieces of 1,000 lines, as a file is read."""
    before, after = a_line(custom_id="NUMBER").split(b"NUMBER")
    for first in range(0, count, 1000):
        numbers = range(first, min(first + 1000, count))
        yield b"".join(b"%bline-%d%b\n" % (before, number, after) for number in numbers)


def test_a_line_of_60_mb_is_named_and_not_kept() -> None:
    def pieces() -> Iterator[bytes]:
        yield a_line() + b'\n{"custom_id": "'
        for _ in range(60):
            yield b"x" * MIB
        yield b'"}\n' + a_line(custom_id="b")

    tracemalloc.start()
    found = report(pieces())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert codes(found) == [("line_too_long", None, 2)]
    assert found.lines == 3
    assert peak < 40 * MIB


def test_lines_with_much_text_beside_their_prompts_are_not_kept() -> None:
    def pieces() -> Iterator[bytes]:
        for number in range(16):
            tools = b'"tools":[{"description":"%b"}],' % (b"x" * (4 * MIB + number))
            yield a_line(custom_id=str(number)).replace(b'"messages"', tools + b'"messages"') + b"\n"

    tracemalloc.start()
    found = report(pieces())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.errors, found.lines) == ([], 16)
    assert peak < 32 * MIB


def test_one_request_more_than_allowed_is_one_too_many() -> None:
    assert codes(report(good_lines(50_001))) == [("too_many_tasks", None, None)]


def test_as_many_requests_as_allowed_are_accepted() -> None:
    found = report(good_lines(50_000))
    assert (found.errors, found.models) == ([], {"m": 50_000})


def test_of_10_000_equal_ids_every_one_but_the_first_is_counted_and_999_are_listed() -> None:
    found = report(a_line() + b"\n" for _ in range(10_000))
    assert found.error_count == 9_999
    assert codes(found)[:999] == [("duplicate_custom_id", "custom_id", line) for line in range(2, 1001)]
    assert codes(found)[999:] == [("too_many_errors", None, None)]
    assert "9999 errors" in found.errors[-1].message


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (b'"hello"', b"[" * 10_000 + b"]" * 10_000, "invalid_json_line"),
        (b'"hello"', b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "invalid_json_line"),
        (b"hello", b"\x00", "invalid_json_line"),
        (b"hello", b"\xed\xb0\x80", "invalid_json_line"),
        (b'"hello"', b"01", "invalid_json_line"),
    ],
    ids=["deep arrays", "deep objects", "NUL", "lone surrogate", "leading zero"],
)
def test_ambiguous_json_is_refused(old: bytes, new: bytes, code: str) -> None:
    assert codes(report(changed(old, new))) == [(code, None, 2)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"hello"', b"18446744073709551616"),
        (b'"hello"', b"-" + b"9" * 300),
        (b'"hello"', b"1e999"),
        (b'"hello"', b'{"a": 1, "a": 2}'),
        (b"hello", rb"\u0000"),
        (b"hello", rb"\ud83d\ude00"),
        (b"hello", rb"\udc00"),
    ],
    ids=[
        "2^64",
        "300 digits",
        "1e999",
        "a key of the body twice",
        "escaped NUL",
        "a pair",
        "half a pair",
    ],
)
def test_values_that_the_backend_validates_are_accepted(old: bytes, new: bytes) -> None:
    assert report(changed(old, new)).errors == []


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"\n", b" \r\n\t\n", b"\xef\xbb\xbf\n\n"])
def test_an_input_without_a_request_is_empty(content: bytes) -> None:
    assert codes(report(iter([content]))) == [("empty_file", None, None)]


def test_one_line_without_a_newline_is_one_request() -> None:
    assert report(iter([a_line()])).lines == 1
