"""Estimate how much work a request is for a backend, from its prompt and its limit of output tokens."""

from msgspec import UNSET

from batchwright.rules.input.line_parser import (
    FastBody,
    PromptFields,
    RawValue,
    RequestBody,
    read_count,
    read_items,
)

_BYTES_PER_TOKEN = 4
_UNIT_BYTES = 512
_UNIT_TOKENS = 256
MAX_WORK_UNITS = 0xFFFF


def prompt_bytes(body: PromptFields) -> int:
    """Return the size of a request's prompt in bytes of JSON.

    Instructions, tools, and a system prompt outside of the messages are left out.
    """
    size = 0
    if body.messages is not UNSET:
        size += len(memoryview(body.messages))
    if body.input is not UNSET:
        size += len(memoryview(body.input))
    if body.prompt is not UNSET:
        size += len(memoryview(body.prompt))
    if not size:
        size = sum(map(_value_bytes, (body.query, body.documents, body.text_1, body.text_2)))
    return size


def estimate_tokens(body: PromptFields, prompt_size: int) -> int:
    """Return the estimated number of tokens of a request's prompt: one per four bytes of JSON, at least one.

    Args:
        body: body of the request.
        prompt_size: result of `prompt_bytes`. This function adds the bytes of the instructions, of the tools,
            and of a system prompt outside of the messages.
    """
    if body.instructions is not UNSET or body.tools is not UNSET or body.system is not UNSET:
        prompt_size += sum(map(_value_bytes, (body.instructions, body.system, body.tools)))
    return -(-prompt_size // _BYTES_PER_TOKEN) or 1


def work_units(body: RequestBody | FastBody, prompt_size: int) -> int:
    """Estimate how much work a request is for a backend, in work units, at most MAX_WORK_UNITS.

    A unit is 512 bytes of prompt or 256 output tokens. If the request sets no limit of output tokens, 256
    output tokens are assumed.

    Args:
        body: body of the request.
        prompt_size: result of `prompt_bytes`.
    """
    tokens = output_limit(body) or _UNIT_TOKENS
    units = -(-prompt_size // _UNIT_BYTES) - -tokens // _UNIT_TOKENS
    return units if units < MAX_WORK_UNITS else MAX_WORK_UNITS


def output_limit(body: RequestBody | FastBody) -> int | None:
    """Return how many output tokens the request allows for each answer; None if it sets no limit."""
    if isinstance(body, FastBody):
        return body.max_completion_tokens or body.max_output_tokens or body.max_tokens or None
    return (
        read_count(body.max_completion_tokens)
        or read_count(body.max_output_tokens)
        or read_count(body.max_tokens)
    )


def answers(body: RequestBody | FastBody) -> int | None:
    """Return the greatest number of answers that the backend can generate for the request; None if unknown.

    For each prompt, the backend generates `n` or `best_of` answers. A request to `/v1/completions` has
    several prompts if its `prompt` is a list of strings or a list of token lists. All other requests have one
    prompt.
    """
    counts = [_answer_count(body.n), _answer_count(body.best_of)]
    known = [count for count in counts if count is not None]
    prompts = read_items(body.prompt) or []
    is_one = not prompts or bytes(prompts[0])[:1] not in (b'"', b"[")
    return max(known) * (1 if is_one else len(prompts)) if len(known) == len(counts) else None


def _answer_count(value: RawValue) -> int | None:
    if value is UNSET or bytes(value) == b"null":
        return 1
    return read_count(value) or None


def _value_bytes(value: RawValue) -> int:
    """Return the size of a raw JSON value in bytes; 0 if it is missing."""
    return 0 if value is UNSET else len(memoryview(value))
