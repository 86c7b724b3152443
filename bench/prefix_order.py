"""Computes how many prompt tokens a prefix cache saves if lines are sent in different orders.

With a prefix cache, a backend skips the beginning of a prompt if it has processed the same beginning before.
The program uses the simulator's cache and sends no requests.
"""

import json
import random
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import zip_longest

from msgspec import UNSET

from batchwright.rules.input.line_parser import RequestBody, raw_bytes, read_body, read_fields
from batchwright.rules.planning.prefix_order import ModelLines, PlanOrder, PromptPrefixes, reread_prompt
from batchwright.rules.planning.request_work import prompt_bytes, work_units
from batchwright.simulator.prefix_cache import BLOCK_TOKENS, BYTES_PER_TOKEN, PrefixCache, token_count

_BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN
_ROUTED_BYTES = 512
_SLICE_LINES, _SLOTS = 256, 4
_CONTENT_BYTES, _QUESTION_BYTES = 4_000, 300


def mixes(count: int, seed: int = 1) -> dict[str, list[bytes]]:
    """Return the lines of several batches. The keys of the result describe the batches.

    Each batch has `count` lines in random order. Equal seeds give equal lines.
    """
    makers: dict[str, Callable[[random.Random, int], dict[str, str]]] = {
        "few long system prompts": _few_prompts,
        "similar but unequal prompts": _similar_prompts,
        "few-shot templates": _templates,
    }
    return {name: _lines(maker, count, seed) for name, maker in makers.items()}


def _lines(maker: Callable[[random.Random, int], dict[str, str]], count: int, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [_line(number, maker(rng, number)) for number in range(count)]


def _line(number: int, parts: dict[str, str]) -> bytes:
    turns = [{"role": role, "content": text} for role, text in parts.items()]
    most = 64 if number % 5 else 4_096  # long and short responses in each group of similar prompts
    line = {"custom_id": str(number), "body": {"model": "m", "messages": turns, "max_tokens": most}}
    return json.dumps(line).encode() + b"\n"


def _few_prompts(rng: random.Random, number: int) -> dict[str, str]:
    return {"system": _text(rng.randrange(24), _CONTENT_BYTES), "user": question(number)}


def _similar_prompts(rng: random.Random, number: int) -> dict[str, str]:
    """Return a prompt for a random task and a random customer.

    The keys of the result are roles, such as `user`. The values are the messages of these roles. There are
    four tasks and sixty customers. Prompts for the same task differ only after three quarters of their
    length.
    """
    task, customer = rng.randrange(4), rng.randrange(60)
    head, tail = _text(task, _CONTENT_BYTES * 3 // 4), _text(1000 + customer, _CONTENT_BYTES // 4)
    return {"system": f"{head} {tail}", "user": question(number)}


def _templates(rng: random.Random, number: int) -> dict[str, str]:
    """Return a prompt that begins with random examples and ends with a question.

    The key of the result is the role `user`. The value is the message.
    """
    return {"user": f"{_text(2000 + rng.randrange(24), _CONTENT_BYTES)} {question(number)}"}


def question(number: int) -> str:
    """Return the text of a question that occurs only once."""
    return _text(10_000 + number, _QUESTION_BYTES)


@lru_cache(maxsize=256)
def _text(seed: int, size: int) -> str:
    rng = random.Random(seed)
    return "".join(f"{rng.getrandbits(32):08x} " for _ in range(size // 9 + 1))[:size]


def prompt(line: bytes) -> bytes:
    """Return the part of a line that the simulator's cache compares: the bytes of its messages."""
    return raw_bytes(_body(line).messages)


def _body(line: bytes) -> RequestBody:
    body = read_fields(line).body
    assert body is not UNSET
    return read_body(body)


def in_order(lines: Sequence[bytes], order: PlanOrder) -> list[bytes]:
    """Return the lines in the order in which a worker sends them with the setting `order`."""
    places: dict[int, bytes] = {}
    prefixes, plan, offset = PromptPrefixes(), ModelLines(order), 0
    for line in lines:
        prompt = reread_prompt(line)
        number, prefix_hash = prefixes.intern(prompt, offset, len(line))
        body = _body(line)
        units = work_units(body, prompt_bytes(body))
        plan.add(offset, len(line), number, prefix_hash, prefixes.sort_key(number, prompt.rest), units)
        places[offset] = line
        offset += len(line)

    def read(at: int, length: int) -> bytes:
        return places[at][:length]

    return [places[planned.entry.offset] for planned in plan.in_order(prefixes.ranks(read), read)]


def hit_ratio(plan: Sequence[bytes], *, replicas: int, budget_tokens: int) -> float:
    """Return the fraction of the prompt tokens that are already in the prefix caches, from 0 to 1.

    The lines are sent in the order that `interleaved` returns. The beginning of a prompt decides which
    replica gets the line.

    Args:
        plan: the lines in the order of the plan.
        replicas: number of backend replicas. Each has its own cache.
        budget_tokens: capacity of each cache.
    """
    caches = [PrefixCache(budget_tokens) for _ in range(replicas)]
    hits = total = 0
    for line in interleaved(plan):
        text = prompt(line)
        hits += caches[_replica(text, replicas)].cached_tokens(text)
        total += token_count(text)
    return hits / total


def best_ratio(lines: Sequence[bytes], *, replicas: int) -> float:
    """Return the highest possible fraction of prompt tokens that are already in the caches, from 0 to 1.

    The caches have unlimited size, so each replica computes each block of a prompt only once.
    """
    seen: set[tuple[int, bytes]] = set()
    hits = total = 0
    for line in lines:
        text = prompt(line)
        replica = _replica(text, replicas)
        total += token_count(text)
        for end in range(_BLOCK_BYTES, len(text) + 1, _BLOCK_BYTES):
            block = (replica, text[:end])
            hits += BLOCK_TOKENS * (block in seen)
            seen.add(block)
    return hits / total


def _replica(text: bytes, replicas: int) -> int:
    """Return the number of the replica that gets a prompt.

    The beginning of the prompt decides, as in prefix-aware routers.
    """
    return zlib.crc32(text[:_ROUTED_BYTES]) % replicas


def interleaved(plan: Sequence[bytes]) -> list[bytes]:
    """Return the lines of a plan in the order in which a worker sends them.

    A worker processes a few slices (pieces) of the plan at the same time. It sends the first line of each
    slice, then the second line of each slice, and so on.
    """
    slices = [plan[at : at + _SLICE_LINES] for at in range(0, len(plan), _SLICE_LINES)]
    sent: list[bytes] = []
    for at in range(0, len(slices), _SLOTS):
        for turn in zip_longest(*slices[at : at + _SLOTS]):
            sent += [line for line in turn if line is not None]
    return sent
