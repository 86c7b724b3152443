"""What orders of a plan are worth to prefix caches, computed with the simulator's cache; nothing is sent."""

import json
import random
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import zip_longest

from msgspec import UNSET

from batchwright.rules.lines import Body, prompt_bytes, raw_bytes, read_body, read_fields
from batchwright.rules.ordering import ModelLines, PlanOrder, Prefixes, prompt_again
from batchwright.rules.slicing import work_units
from simulator.cache import BLOCK_TOKENS, BYTES_PER_TOKEN, PrefixCache, token_count

_BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN
_ROUTED_BYTES = 512
_SLICE_LINES, _SLOTS = 256, 4
_CONTENT_BYTES, _QUESTION_BYTES = 4_000, 300


def mixes(count: int) -> dict[str, list[bytes]]:
    """Lines of batches, in an order that knows nothing of what they share."""
    makers: dict[str, Callable[[random.Random, int], dict[str, str]]] = {
        "few long system prompts": _few_prompts,
        "similar but unequal prompts": _similar_prompts,
        "few-shot templates": _templates,
    }
    return {name: _lines(maker, count) for name, maker in makers.items()}


def _lines(maker: Callable[[random.Random, int], dict[str, str]], count: int) -> list[bytes]:
    chance = random.Random(1)
    return [_line(number, maker(chance, number)) for number in range(count)]


def _line(number: int, parts: dict[str, str]) -> bytes:
    turns = [{"role": role, "content": text} for role, text in parts.items()]
    line = {"custom_id": str(number), "body": {"model": "m", "messages": turns, "max_tokens": 64}}
    return json.dumps(line).encode() + b"\n"


def _few_prompts(chance: random.Random, number: int) -> dict[str, str]:
    return {"system": _text(chance.randrange(24), _CONTENT_BYTES), "user": _question(number)}


def _similar_prompts(chance: random.Random, number: int) -> dict[str, str]:
    """Four tasks for sixty customers each, whose names stand at three quarters of the prompt."""
    task, customer = chance.randrange(4), chance.randrange(60)
    head, tail = _text(task, _CONTENT_BYTES * 3 // 4), _text(1000 + customer, _CONTENT_BYTES // 4)
    return {"system": f"{head} {tail}", "user": _question(number)}


def _templates(chance: random.Random, number: int) -> dict[str, str]:
    """No system prompt: examples stand before each question."""
    return {"user": f"{_text(2000 + chance.randrange(24), _CONTENT_BYTES)} {_question(number)}"}


def _question(number: int) -> str:
    return _text(10_000 + number, _QUESTION_BYTES)


@lru_cache(maxsize=256)
def _text(seed: int, size: int) -> str:
    chance = random.Random(seed)
    return "".join(f"{chance.getrandbits(32):08x} " for _ in range(size // 9 + 1))[:size]


def prompt(line: bytes) -> bytes:
    """What the simulator's cache sees of a line."""
    return raw_bytes(_body(line).messages)


def _body(line: bytes) -> Body:
    body = read_fields(line).body
    assert body is not UNSET
    return read_body(body)


def in_order(lines: Sequence[bytes], order: PlanOrder) -> list[bytes]:
    """The lines as ingestion plans them."""
    places: dict[int, bytes] = {}
    prefixes, plan, offset = Prefixes(), ModelLines(order), 0
    for line in lines:
        asked = prompt_again(line)
        number, prefix_hash = prefixes.intern(asked, offset, len(line))
        body = _body(line)
        units = work_units(body, prompt_bytes(body))
        plan.add(offset, len(line), number, prefix_hash, prefixes.note(number, asked.rest), units)
        places[offset] = line
        offset += len(line)

    def read(at: int, length: int) -> bytes:
        return places[at][:length]

    return [places[planned.entry.offset] for planned in plan.in_order(prefixes.ranks(read), read)]


def hit_ratio(plan: Sequence[bytes], *, replicas: int, budget_tokens: int) -> float:
    """Cached tokens over all: a few slices of the plan are sent at once, each prompt to its replica."""
    caches = [PrefixCache(budget_tokens) for _ in range(replicas)]
    hits = total = 0
    for line in interleaved(plan):
        text = prompt(line)
        hits += caches[_replica(text, replicas)].cached_tokens(text)
        total += token_count(text)
    return hits / total


def best_ratio(lines: Sequence[bytes], *, replicas: int) -> float:
    """What no order can exceed: every distinct block is computed once, where its prompts go."""
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
    """As routers do that send what begins alike to the same place."""
    return zlib.crc32(text[:_ROUTED_BYTES]) % replicas


def interleaved(plan: Sequence[bytes]) -> list[bytes]:
    """The slices of a plan as a worker sends them: a few at once, a line of each in turn."""
    slices = [plan[at : at + _SLICE_LINES] for at in range(0, len(plan), _SLICE_LINES)]
    sent: list[bytes] = []
    for at in range(0, len(slices), _SLOTS):
        for turn in zip_longest(*slices[at : at + _SLOTS]):
            sent += [line for line in turn if line is not None]
    return sent
