"""Event streams of backends: which events are passed on to the client, and the token usage in them."""

import tracemalloc

import pytest

from batchwright.rules.results.event_stream import EventStream
from batchwright.rules.results.token_usage import Tokens

WORDS = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
COMPLETED = (
    b'event: response.completed\ndata: {"type":"response.completed","response":'
    b'{"output":[],"usage":{"input_tokens":7,"output_tokens":3}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def passed_on(stream: EventStream, content: bytes, size: int) -> bytes:
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    return b"".join([*map(stream.feed, pieces), stream.finish()])


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize(
    "content", [WORDS + USAGE + DONE, COMPLETED, b"data: {\r\ndata: }\r\n\r\n: ping", b""]
)
def test_a_stream_is_passed_on_unchanged(content: bytes, size: int) -> None:
    assert passed_on(EventStream(hides_usage=False), content, size) == content


def test_an_event_in_tiny_pieces_takes_little_more_memory_than_its_bytes() -> None:
    stream, pieces = EventStream(hides_usage=False), 100_000
    tracemalloc.start()
    try:
        for _ in range(pieces):
            stream.feed(bytes((120, 121)))  # a new object each time
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert stream.held_bytes == 2 * pieces
    assert used < 4 * pieces


@pytest.mark.parametrize("content", [WORDS + USAGE + DONE, WORDS + COMPLETED])
def test_the_usage_is_read_from_any_form(content: bytes) -> None:
    stream = EventStream(hides_usage=False)
    passed_on(stream, content, 10)
    assert stream.usage == Tokens(7, output_tokens=3)


def test_an_event_with_nothing_but_usage_is_left_out_if_the_client_did_not_ask_for_it() -> None:
    stream = EventStream(hides_usage=True)
    assert passed_on(stream, WORDS + USAGE + DONE, 9) == WORDS + b"\n" + DONE
    assert stream.usage == Tokens(7, output_tokens=3)


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"usage"\n',
        b'data: {"usage":{"prompt_tokens":-1}}\n',
        b'data: {"usage":"much","choices":[]}\n',
        b'data: "usage"\n',
        b'data: {"response":{"usage":[]}}\n',
        b'data: \xff"usage"\n',
        b"data: " + b"[" * 100_000 + b'"usage"\n',
    ],
)
def test_events_that_make_no_sense_are_passed_on_and_report_nothing(line: bytes) -> None:
    stream = EventStream(hides_usage=True)
    assert stream.feed(line + b"\n") == line + b"\n"
    assert stream.usage is None


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_an_event_is_passed_on_as_soon_as_it_is_complete(end: bytes) -> None:
    stream = EventStream(hides_usage=False)
    first, second = b"event: a%bdata: 1%b%b" % (end, end, end), b"event: b%bdata: {}%b%b" % (end, end, end)
    assert stream.feed(first + second[:9]) == first
    assert stream.held_bytes == 9
    held = [stream.feed(second[at : at + 1]) for at in range(9, len(second))]
    assert held == [b""] * (len(held) - 1) + [second]
    assert (stream.held_bytes, stream.events) == (0, 2)
    assert stream.feed(second + first) == second + first


@pytest.mark.parametrize(
    ("content", "has_answered", "has_failed"),
    [
        (b"", False, False),
        (b": ping\n\n" + DONE, False, False),
        (WORDS + DONE, True, False),
        (COMPLETED.replace(b'{"output"', b'{"error":null,"output"'), True, False),
        (b'data: {"choices":[],"error":null}\n\n', True, False),
        (b'data: {"error":{"message":"no"}}\n\n' + DONE, False, True),
        (b'event: error\ndata: {"type":"error","code":"x"}\n\n', False, True),
        (WORDS + b'data: {"error":"died"}\n\n', True, True),
    ],
)
def test_errors_in_a_stream_are_told_from_answers(
    content: bytes, has_answered: bool, has_failed: bool
) -> None:
    stream = EventStream(hides_usage=True)
    passed_on(stream, content, 11)
    assert (stream.has_answered, stream.has_failed) == (has_answered, has_failed)
