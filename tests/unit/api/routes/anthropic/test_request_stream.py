"""The body of a message batch. It is read in pieces of any size, and written as an input file."""

import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.api.errors import ApiError
from batchwright.api.routes.anthropic.request_stream import (
    OversizedRequest,
    RequestLimits,
    RequestSplitter,
    RequestStream,
)

LIMITS = RequestLimits(max_requests=3, max_bytes=10_000, max_line_bytes=1_000)
# Spaces, the order of keys, escapes, numbers beyond 64 bits, half of a UTF-16 pair, brackets in strings.
ODD = (
    '{ "messages":[{"content":"\\u0041\\/ \\ud83d\\ude00 é]}\\"{[\\\\","role":"user"}] ,'
    '"seed":123456789012345678901234567890,"x":1.10e+2,"half":"\\ud800" }'
)
PARAMS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


async def in_pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def written(body: bytes, size: int = 7, limits: RequestLimits = LIMITS) -> bytes:
    """Return the content of the input file that results from a body in pieces of `size` bytes."""
    form = RequestStream(limits).form(in_pieces(body, size))
    return b"".join([piece async for piece in form if isinstance(piece, bytes)])


def line(custom_id: str, params: str) -> str:
    return f'{{"custom_id":"{custom_id}","method":"POST","url":"/v1/messages","body":{params}}}\n'


@pytest.mark.parametrize("size", [1, 2, 3, 50, 10_000])
async def test_params_are_copied_byte_for_byte(size: int) -> None:
    body = f' {{ "requests" : [ {{"params":{ODD},"custom_id":"a"}} , {{"custom_id":"b-_9","params":5}}\n]}} '
    assert (await written(body.encode(), size)).decode() == line("a", ODD) + line("b-_9", "5")


async def test_only_line_breaks_between_tokens_are_left_out() -> None:
    body = '{"requests":[{"custom_id":"a","params":{\r\n  "x": "a\\nb"\n}}]}'
    assert (await written(body.encode())).decode() == line("a", '{  "x": "a\\nb"}')


@given(
    params=st.lists(PARAMS, min_size=1, max_size=3), size=st.integers(1, 200), indent=st.none() | st.just(1)
)
async def test_any_requests_in_any_pieces_become_lines_with_equal_bodies(
    params: list[object], size: int, indent: int | None
) -> None:
    requests = [{"custom_id": f"r{n}", "params": each} for n, each in enumerate(params)]
    body = json.dumps({"requests": requests}, indent=indent).encode()
    limits = LIMITS._replace(max_bytes=10**6, max_line_bytes=10**6)
    lines = (await written(body, size, limits)).splitlines()
    assert [json.loads(each)["body"] for each in lines] == params


@given(
    body=st.binary(max_size=60) | st.text('{}[]":,\\ requsta1', max_size=60).map(str.encode),
    size=st.integers(1, 9),
)
async def test_any_bytes_are_lines_or_an_error_for_the_client(body: bytes, size: int) -> None:
    with suppress(ApiError):
        assert (await written(body, size)).endswith(b"\n")


def refusals() -> Iterator[tuple[str, int, str]]:
    good = '{"custom_id":"a","params":{}}'
    yield "", 400, "The body must be an object"
    yield "[]", 400, "The body must be an object."
    yield "{", 400, "We could not parse the JSON body"
    yield "{}", 400, "requests: Field required."
    yield '{"x":1}', 400, "requests: Field required."
    yield '{"requests":{}}', 400, "requests: Input should be a valid list."
    yield '{"requests":[],"x":1}', 400, "no other field after it"
    yield '{"x":1,"requests":[]}', 400, "no other field"
    yield '{"requests":[]}', 400, "requests: List should have at least 1 item."
    yield '{"requests":[5]}', 400, "requests.0: Input should be an object."
    yield f'{{"requests":[{good},]}}', 400, "requests.1: Input should be an object."
    yield f'{{"requests":[{good}{good}]}}', 400, "must follow requests.0"
    yield f'{{"requests":[{good}', 400, "it ends before the list of requests does"
    yield f'{{"requests":[{good}]', 400, "it ends before the list of requests does"
    yield f'{{"requests":[{good[:-4]}', 400, "it ends before the list of requests does"
    yield f'{{"requests":[{good}]}}x', 400, "more text follows its end"
    yield '{"requests":[{"custom_id":"a","params":{]}]}', 400, "requests.0 is not valid"
    yield '{"requests":[{"params":{}}]}', 400, "requests.0.custom_id: Field required."
    yield (
        '{"requests":[{"custom_id":5,"params":{}}]}',
        400,
        "requests.0.custom_id: Input should be a valid string.",
    )
    yield (
        '{"requests":[{"custom_id":"a b","params":{}}]}',
        400,
        "requests.0.custom_id: String should match pattern",
    )
    yield f'{{"requests":[{{"custom_id":"{"a" * 65}","params":{{}}}}]}}', 400, "String should match pattern"
    yield f'{{"requests":[{good},{good}]}}', 400, "requests.1.custom_id: 'a' is repeated."
    yield '{"requests":[{"custom_id":"a"}]}', 400, "requests.0.params: Field required."
    yield (
        '{"requests":[{"custom_id":"a","params":{},"x":1}]}',
        400,
        "requests.0.x: Extra inputs are not permitted.",
    )
    many = ",".join(f'{{"custom_id":"a{n}","params":{{}}}}' for n in range(4))
    yield f'{{"requests":[{many}]}}', 413, "requests: List should have at most 3 items."
    for hidden in ('"x":1', '"custom_id":"a b"', '"custom_id":5'):
        long = f'{{"params":"{"x" * 3000}",{hidden}}}'
        yield f'{{"requests":[{long}]}}', 413, "requests.0: a request may have at most 1000 bytes."
    yield (
        '{"requests":[' + 10_000 * " " + "]}",
        413,
        "The body is too large: at most 10000 bytes are allowed.",
    )
    deep = 1000 * "[" + 1000 * "]"
    yield f'{{"requests":[{{"custom_id":"a","params":{deep}}}]}}', 400, "it is nested too deeply"


@pytest.mark.parametrize(("body", "status", "message"), list(refusals()))
async def test_what_is_no_list_of_requests_is_refused_with_the_place_of_the_fault(
    body: str, status: int, message: str
) -> None:
    limits = LIMITS._replace(max_line_bytes=5_000) if "nested" in message else LIMITS
    with pytest.raises(ApiError) as refused:
        await written(body.encode(), limits=limits)
    assert (refused.value.status, message in refused.value.message) == (status, True), refused.value.message


async def test_bytes_that_are_not_utf_8_are_refused() -> None:
    with pytest.raises(ApiError, match=r"requests\.0 is not valid"):
        await written(b'{"requests":[{"custom_id":"a","params":"\xff"}]}')


LONG = f'["{{custom_id\\":\\"x" , {"1" * 4000}, ["]}}"], "\\"custom_id\\":\\"fake\\"}}"]'


@pytest.mark.parametrize("size", [1, 7, 900, 10_000])
@pytest.mark.parametrize(
    "request_over_the_limit",
    [
        f'{{"custom_id":"long","params":{LONG}}}',
        f'{{ "params" : {LONG} ,\n "custom_id" : "long" }}',
        f'{{"custom_id":"first","params":{LONG},"custom_id":"long"}}',
    ],
)
async def test_a_request_over_the_limit_becomes_a_line_without_a_body(
    size: int, request_over_the_limit: str
) -> None:
    others = [f'{{"custom_id":"{id}","params":{{}}}}' for id in ("a", "b")]
    body = f'{{"requests":[{others[0]}, {request_over_the_limit} ,{others[1]}]}}'
    lines = (await written(body.encode(), size)).decode()
    assert lines == (
        line("a", "{}") + '{"custom_id":"long","method":"POST","url":"/v1/messages"}\n' + line("b", "{}")
    )


async def test_a_line_over_the_limit_has_no_body_although_its_request_is_within_the_limit() -> None:
    body = f'{{"requests":[{{"custom_id":"a","params":"{"x" * 950}"}}]}}'
    assert (await written(body.encode())).decode() == (
        '{"custom_id":"a","method":"POST","url":"/v1/messages"}\n'
    )


async def test_the_id_of_a_request_over_the_limit_must_be_unique_too() -> None:
    long = f'{{"custom_id":"a","params":{LONG}}}'
    with pytest.raises(ApiError, match=r"requests\.1\.custom_id: 'a' is repeated"):
        await written(f'{{"requests":[{{"custom_id":"a","params":{{}}}},{long}]}}'.encode())


async def test_of_a_request_over_the_limit_only_the_beginning_and_the_end_are_in_memory() -> None:
    splitter = RequestSplitter(max_bytes=1000)
    piece = b"x" * 100_000
    found = [*splitter.feed(b'{"requests":[{"custom_id":"a","params":"')]
    tracemalloc.start()
    try:
        for _ in range(50):
            found += splitter.feed(piece)
        assert tracemalloc.get_traced_memory()[0] < 10 * len(piece)
    finally:
        tracemalloc.stop()
    found += splitter.feed(b'"}]}')
    splitter.finish()
    assert found == [OversizedRequest(b'"a"')]
