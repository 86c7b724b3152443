"""Tokens as backends report them."""

import pytest

from batchwright.contracts.openai import Usage
from batchwright.rules.usage import usage_of


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
        (b'{"data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}', Usage(input_tokens=8)),
        (b'{"usage":{"prompt_tokens":5,"completion_tokens":null}}', Usage(input_tokens=5)),
        (b'{"usage":null}', Usage()),
        (b"{}", Usage()),
        (b"[1]", Usage()),
        (b'{"usage":"many"}', Usage()),
        (b"<html>", Usage()),
        (b"\xff", Usage()),
    ],
)
def test_usage_is_read_from_every_endpoints_answer(body: bytes, usage: Usage) -> None:
    assert usage_of(body) == usage
