"""Token usage in the form in which backends report it."""

import pytest

from batchwright.contracts.terms import Usage
from batchwright.rules.results.token_usage import Tokens, tokens_of_plain_success, usage_of


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (
            b'{"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,'
            b'"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":2}}}',
            Usage(input_tokens=7, cached_tokens=4, output_tokens=3, reasoning_tokens=2),
        ),
        (
            b'{"usage":{"input_tokens":7,"output_tokens":3,"input_tokens_details":{"cached_tokens":4},'
            b'"output_tokens_details":{"reasoning_tokens":2}}}',
            Usage(input_tokens=7, cached_tokens=4, output_tokens=3, reasoning_tokens=2),
        ),
        (
            b'{"usage":{"input_tokens":150,"cache_read_input_tokens":800,"cache_creation_input_tokens":50,'
            b'"output_tokens":3}}',
            Usage(input_tokens=1000, cached_tokens=800, output_tokens=3),
        ),
        (
            b'{"usage":{"prompt_tokens":1000,"completion_tokens":3,"cache_read_input_tokens":800,'
            b'"cache_creation_input_tokens":50,"prompt_tokens_details":{"cached_tokens":700}}}',
            Usage(input_tokens=1000, cached_tokens=700, output_tokens=3),
        ),
        (
            b'{"usage":{"prompt_tokens":1000,"cache_read_input_tokens":800,"cache_creation_input_tokens":50}}',
            Usage(input_tokens=1000, cached_tokens=800),
        ),
        (
            b'{"usage":{"prompt_tokens":5,"cache_read_input_tokens":800,"prompt_tokens_details":null}}',
            Usage(input_tokens=5, cached_tokens=5),
        ),
        (
            b'{"usage":{"input_tokens":1000,"cache_read_input_tokens":800,'
            b'"input_tokens_details":{"cached_tokens":800}}}',
            Usage(input_tokens=1000, cached_tokens=800),
        ),
        (
            b'{"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":null,"reasoning_tokens":2}}',
            Usage(input_tokens=7, output_tokens=3, reasoning_tokens=2),
        ),
        (
            b'{"usage":{"completion_tokens":3,"reasoning_tokens":2,'
            b'"completion_tokens_details":{"reasoning_tokens":1}}}',
            Usage(output_tokens=3, reasoning_tokens=1),
        ),
        (b'{"data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}', Usage(input_tokens=8)),
        (b'{"usage":{"prompt_tokens":5,"completion_tokens":null}}', Usage(input_tokens=5)),
        (b'{"usage":null}', Usage()),
        (b'{"usage":{"prompt_tokens":-5,"completion_tokens":2}}', Usage()),
        (b'{"usage":{"completion_tokens":4294967295}}', Usage(output_tokens=4_294_967_295)),
        (b'{"usage":{"completion_tokens":4294967296}}', Usage()),
        (b'{"usage":{"completion_tokens_details":{"reasoning_tokens":-1}}}', Usage()),
        (b"{}", Usage()),
        (b"[1]", Usage()),
        (b'{"usage":"many"}', Usage()),
        (b"<html>", Usage()),
        (b"\xff", Usage()),
    ],
)
def test_usage_is_read_from_every_endpoints_answer(body: bytes, usage: Usage) -> None:
    assert usage_of(body) == usage


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"id":"x","usage":{"prompt_tokens":5}}', Tokens(5)),
        ('{"id":"ä","usage":{"prompt_tokens":5}}'.encode(), Tokens(5)),
        (b'{"id":"\xff","usage":{"prompt_tokens":5}}', None),
        (b'{"error":null,"usage":{"prompt_tokens":5}}', None),
        (b"[1]", None),
    ],
)
def test_an_answer_is_plain_if_it_is_a_utf8_object_without_an_error(
    body: bytes, tokens: Tokens | None
) -> None:
    assert tokens_of_plain_success(body) == tokens
