"""Tokens a backend reported, whatever the endpoint calls them; what is missing counts as zero."""

from collections.abc import Iterable
from typing import Annotated, Protocol

import msgspec

from batchwright.contracts.openai import Usage


class Counted(Protocol):
    """Tokens of each kind."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def reasoning_tokens(self) -> int: ...


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """Of one answer: a `Usage` that costs next to nothing to make."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


NO_TOKENS = Tokens()


# What a record of results holds. No answer has more; below zero it would be a budget's refund.
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] | None


class _InputDetails(msgspec.Struct):
    cached_tokens: _Count = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: _Count = None


class _Usage(msgspec.Struct):
    """Chat's and embeddings' names beside those of responses."""

    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    input_tokens: _Count = None
    output_tokens: _Count = None
    prompt_tokens_details: _InputDetails | None = None
    input_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


_decoder = msgspec.json.Decoder(_Answer)


def usage_of(body: bytes) -> Usage:
    """The usage of one answer; zeros where there is none that can be read."""
    return total([tokens_of(body)])


def tokens_of(body: bytes) -> Tokens:
    """The same, for whoever has many answers."""
    try:
        return _tokens(_decoder.decode(body).usage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NO_TOKENS


def tokens_if_plain(body: bytes) -> Tokens | None:
    """The same of an answer that is an object and tells of no error, which nearly all are: read in one pass.

    None: what it is has to be looked at carefully (rules/usable.py).
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
    return Tokens(
        found.prompt_tokens or found.input_tokens or 0,
        (inputs.cached_tokens if inputs else None) or 0,
        found.completion_tokens or found.output_tokens or 0,
        (outputs.reasoning_tokens if outputs else None) or 0,
    )


def total(usages: Iterable[Counted]) -> Usage:
    """The sum, made once: of thousands of answers at a time."""
    inputs = cached = outputs = reasoning = 0
    for usage in usages:
        inputs += usage.input_tokens
        cached += usage.cached_tokens
        outputs += usage.output_tokens
        reasoning += usage.reasoning_tokens
    return Usage(input_tokens=inputs, cached_tokens=cached, output_tokens=outputs, reasoning_tokens=reasoning)
