"""Tokens a backend reported, whatever the endpoint calls them; what is missing counts as zero."""

from collections.abc import Sequence

import msgspec

from batchwright.contracts.openai import Usage


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    """Chat's and embeddings' names beside those of responses."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    input_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


_decoder = msgspec.json.Decoder(_Answer)


def usage_of(body: bytes) -> Usage:
    """The usage of one answer; zeros where there is none that can be read."""
    try:
        found = _decoder.decode(body).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Usage()
    if found is None:
        return Usage()
    inputs = found.prompt_tokens_details or found.input_tokens_details
    outputs = found.completion_tokens_details or found.output_tokens_details
    return Usage(
        input_tokens=found.prompt_tokens or found.input_tokens or 0,
        cached_tokens=(inputs.cached_tokens if inputs else None) or 0,
        output_tokens=found.completion_tokens or found.output_tokens or 0,
        reasoning_tokens=(outputs.reasoning_tokens if outputs else None) or 0,
    )


def total(usages: Sequence[Usage]) -> Usage:
    """The sum, made once: of thousands of answers at a time."""
    return Usage(
        input_tokens=sum(usage.input_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
    )
