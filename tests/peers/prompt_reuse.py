"""Lines with few system prompts for llama.cpp's tiny model, and how often its server computes the prompts."""

import asyncio
import random
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel

from tests.clients import http_client
from tests.e2e.batches import CHAT

_SYSTEM_BYTES, _QUESTION_BYTES, _MAX_TOKENS = 800, 40, 12


class Prompts(NamedTuple):
    """Lines with few system prompts, and the tokens of their prompts.

    Attributes:
        lines: the lines in random order.
        distinct_tokens: tokens of all prompts, with each system prompt counted once.
    """

    lines: list[dict[str, object]]
    distinct_tokens: int


class _Cached(BaseModel):
    cached_tokens: int


class _Usage(BaseModel):
    prompt_tokens: int
    prompt_tokens_details: _Cached


class _Response(BaseModel):
    usage: _Usage


def prompts(model: str, systems: int, each: int, seed: int) -> Prompts:
    """Return lines with `systems` different system prompts, `each` lines for each of them.

    Different seeds give different prompts, which have nothing in common.
    """
    generator = random.Random(seed)
    texts = [_text(generator, _SYSTEM_BYTES) for _ in range(systems)]
    order = [system for system in texts for _ in range(each)]
    generator.shuffle(order)
    lines: list[dict[str, object]] = []
    for number, system in enumerate(order):
        question = _text(generator, _QUESTION_BYTES)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        body = {"model": model, "messages": messages, "max_tokens": _MAX_TOKENS}
        lines.append({"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body})
    # `<|turn|>system\n...<|end|><|turn|>user\n...<|end|><|reply|>`: a byte is one token, and so is a mark.
    system_tokens = len("tsystem\n") + _SYSTEM_BYTES + len("etuser\n")
    own_tokens = _QUESTION_BYTES + len("er")
    return Prompts(lines, systems * system_tokens + len(lines) * own_tokens)


def _text(generator: random.Random, size: int) -> str:
    return generator.randbytes(size // 2).hex()


async def computed_in_file_order(url: str, lines: Sequence[dict[str, object]], in_flight: int) -> int:
    """Send the lines to the server in the order of the file. Return the number of computed prompt tokens.

    Each of `in_flight` connections sends the next line when it has its response.
    """
    waiting = iter(lines)
    computed = 0

    async def send() -> None:
        nonlocal computed
        for line in waiting:
            response = await http.post(CHAT, json=line["body"])
            usage = _Response.model_validate_json(response.raise_for_status().content).usage
            computed += usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens

    async with http_client(url) as http:
        await asyncio.gather(*(send() for _ in range(in_flight)))
    return computed
