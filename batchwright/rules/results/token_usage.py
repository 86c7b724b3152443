"""Read the token usage in a response, for any endpoint. Missing counts are zero."""

from collections.abc import Iterable
from typing import Annotated, Protocol

import msgspec

from batchwright.contracts.terms import Usage
from batchwright.rules.json_text import replace_lone_surrogates


class TokenUsage(Protocol):
    """Any object with the token counts of one or more responses, by kind of token."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def reasoning_tokens(self) -> int: ...


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one response. The class has the same fields as `Usage`, but is faster to create."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


NO_TOKENS = Tokens()


_MAX_COUNT = 2**32 - 1  # the maximum that a segment record can hold
# A negative count would be a refund to a budget.
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT)] | None


class _InputDetails(msgspec.Struct):
    cached_tokens: _Count = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: _Count = None


class _Usage(msgspec.Struct):
    """Token usage in a response. It has the field names of all endpoints, because some gateways mix them.

    - `prompt_tokens` includes the cached tokens, which were read from a cache or written to it.
    - If the usage has `input_tokens_details`, `input_tokens` includes the cached tokens.
    - If the usage has no such details, it comes from Anthropic's Messages API. There, `input_tokens` does not
      include the cached tokens, so this module adds their number.
    - `reasoning_tokens` is usually in an object of details. In SGLang's responses, it is next to the other
      counts.
    """

    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    input_tokens: _Count = None
    output_tokens: _Count = None
    cache_read_input_tokens: _Count = None
    cache_creation_input_tokens: _Count = None
    reasoning_tokens: _Count = None
    prompt_tokens_details: _InputDetails | None = None
    input_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _ReportedUsage(msgspec.Struct):
    usage: _Usage | None = None


_decoder = msgspec.json.Decoder(_ReportedUsage)


def usage_of(body: bytes) -> Usage:
    """Return the token usage that one response reports; zeros if the usage is missing or invalid."""
    return total_usage([tokens_of(body)])


def tokens_of(body: bytes) -> Tokens:
    """Return the token counts that one response reports; zeros if it reports no usage.

    This is faster than `usage_of`.
    """
    try:
        return _tokens(_decoder.decode(replace_lone_surrogates(body)).usage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NO_TOKENS


def tokens_of_plain_success(body: bytes) -> Tokens | None:
    """Return the token counts of a response that is certainly a success; None for any other response.

    The check is fast. The result is None if the response mentions an error or is not a JSON object. Such a
    response may still be a success, so check it with `response_checks.py`.
    """
    if b'"error"' in body:
        return None
    try:
        if not body.isascii():
            body.decode()
        return _tokens(_decoder.decode(body).usage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _tokens(found: _Usage | None) -> Tokens:
    if found is None:
        return NO_TOKENS
    inputs = found.prompt_tokens_details or found.input_tokens_details
    outputs = found.completion_tokens_details or found.output_tokens_details
    cached = (inputs.cached_tokens if inputs else None) or found.cache_read_input_tokens or 0
    prompt = found.prompt_tokens or found.input_tokens or 0
    if found.prompt_tokens is None and inputs is None:
        prompt = min(prompt + cached + (found.cache_creation_input_tokens or 0), _MAX_COUNT)
    return Tokens(
        prompt,
        min(cached, prompt),
        found.completion_tokens or found.output_tokens or 0,
        (outputs.reasoning_tokens if outputs else None) or found.reasoning_tokens or 0,
    )


def total_usage(usages: Iterable[TokenUsage]) -> Usage:
    """Return the sum of the token counts in `usages`, by kind of token.

    This is fast, even for thousands of responses.
    """
    inputs = cached = outputs = reasoning = 0
    for usage in usages:
        inputs += usage.input_tokens
        cached += usage.cached_tokens
        outputs += usage.output_tokens
        reasoning += usage.reasoning_tokens
    return Usage(input_tokens=inputs, cached_tokens=cached, output_tokens=outputs, reasoning_tokens=reasoning)
