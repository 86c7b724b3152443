"""Simulates an inference engine that caches prompts in its slots, such as llama.cpp.

The simulation shows how often the engine computes the same prompt tokens again. The clock is virtual. The
real rules of a worker decide which line is sent next.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from batchwright.activities.execution.slice_state.line_queue import DueLines
from batchwright.inference.limits.prefix_cache_warmup import PrefixGroups
from bench.limits.backend import Clock

_PROMPT_TOKENS_PER_SECOND = 5_000.0
_OUTPUT_TOKENS_PER_SECOND = 200.0
_MAX_SECONDS = 1e9
_KEEP_SECONDS = 0.01  # a line that waits for a slot with its system prompt is tried again after so long


@dataclass(frozen=True, eq=False)
class Line:
    """A line of a batch, with a system prompt that other lines may share.

    Attributes:
        prompt: number that identifies the system prompt.
        own_tokens: number of prompt tokens, without the tokens of the system prompt.
        due_group: 0 if the worker does not know which lines have the same system prompt; otherwise the same
            number as `prompt`.
    """

    prompt: int
    own_tokens: int
    output_tokens: int
    due_group: int = 0


@dataclass(frozen=True)
class CachedEngine:
    """A simulated inference engine that caches computed system prompts for later requests.

    A slot of the engine serves one request at a time, and keeps the system prompt of its last request. The
    engine chooses the slot for a request as follows:

    - If a free slot has the same system prompt, the request gets this slot.
    - If no free slot has this prompt, the request gets the free slot that has been unused the longest.
    - If no slot is free, the request waits. Requests wait in the order of their arrival.

    Attributes:
        slots: number of slots, and so the maximum number of requests that run at the same time.
        stored: number of system prompts that the engine keeps outside of the slots.
        prompt_tokens: number of tokens of each system prompt.
    """

    slots: int = 4
    stored: int = 0
    prompt_tokens: int = 1_500


@dataclass(frozen=True)
class EngineResult:
    """Result of a simulated batch. It shows how often the engine computed the same prompt tokens again.

    Attributes:
        computed: number of prompt tokens that the engine computed, divided by the number of distinct prompt
            tokens in the batch. The best value is 1.0: each token was computed once.
        seconds: duration of the batch in simulated seconds.
    """

    computed: float
    seconds: float


def lines_with_shared_prompts(count: int, prompts: int, random: Random, *, is_grouped: bool) -> list[Line]:
    """Return lines with random system prompts.

    If `is_grouped`, the worker knows which lines have the same system prompt.
    """
    return [
        Line(prompt, random.randint(20, 60), random.randint(8, 64), prompt if is_grouped else 0)
        for prompt in (random.randint(1, prompts) for _ in range(count))
    ]


class _Simulation:
    def __init__(self, engine: CachedEngine, lines: Sequence[Line], permits: int, stated: int | None) -> None:
        self._engine, self._clock = engine, Clock()
        self._prefixes = PrefixGroups(lambda: self._clock.now)
        self._prefixes.set_width([stated], is_affine=False)
        self._due = DueLines[Line](self._prefixes)
        for line in lines:
            self._due.append(line)
        self._permits = permits
        self._waiting: deque[tuple[Line, float]] = deque()  # with the time at which each line was sent
        self._free: OrderedDict[int, int] = OrderedDict((slot, 0) for slot in range(engine.slots))
        self._stored: OrderedDict[int, int] = OrderedDict()  # copies of each prompt in memory
        self._computed = 0
        self._last = 0.0
        self._waits_since: float | None = None  # as `LineSender` of the worker

    def run(self) -> tuple[int, float]:
        for _ in range(self._permits):
            self._send()
        self._clock.run(_MAX_SECONDS)
        return self._computed, self._last

    def _send(self) -> None:
        line = self._due.pop()
        if line is None:
            return
        prefixes, group, now = self._prefixes, line.due_group, self._clock.now
        if prefixes.slots and prefixes.is_full(group) and prefixes.in_slot((group,)) is None:
            if self._waits_since is None:
                self._waits_since = now
            if now < self._waits_since + self._due.slot_wait_seconds(line):
                self._due.push_front(line)
                self._clock.after(_KEEP_SECONDS, self._send)
                return
        self._waits_since = None
        prefixes.record_sent(group)
        self._waiting.append((line, now))
        self._begin()

    def _begin(self) -> None:
        while self._free and self._waiting:
            line, sent_at = self._waiting.popleft()
            slot = next((slot for slot, prompt in self._free.items() if prompt == line.prompt), None)
            tokens = line.own_tokens
            if slot is None:
                slot = next(iter(self._free))
                self._store(self._free[slot])
                if not self._load(line.prompt):
                    tokens += self._engine.prompt_tokens
            del self._free[slot]
            self._computed += tokens
            seconds = tokens / _PROMPT_TOKENS_PER_SECOND + line.output_tokens / _OUTPUT_TOKENS_PER_SECOND
            self._clock.after(seconds, partial(self._end, line, slot, sent_at))

    def _store(self, prompt: int) -> None:
        if prompt:
            self._stored[prompt] = self._stored.pop(prompt, 0) + 1
            while sum(self._stored.values()) > self._engine.stored:
                self._stored.popitem(last=False)

    def _load(self, prompt: int) -> bool:
        copies = self._stored.pop(prompt, 0)
        if copies > 1:
            self._stored[prompt] = copies - 1
        return copies > 0

    def _end(self, line: Line, slot: int, sent_at: float) -> None:
        self._free[slot] = line.prompt
        self._last = self._clock.now
        self._prefixes.record_success(line.due_group, self._last - sent_at)
        self._prefixes.record_end(line.due_group)
        self._begin()
        self._send()


def run_lines(
    engine: CachedEngine, lines: Sequence[Line], *, permits: int, stated: int | None = None
) -> EngineResult:
    """Send the lines, with at most `permits` requests in flight, and return the result.

    Args:
        stated: number of slots of the engine, as an operator has configured it for the worker; None if the
            worker does not know the number.
    """
    computed, seconds = _Simulation(engine, lines, permits, stated).run()
    distinct = sum(line.own_tokens for line in lines)
    distinct += engine.prompt_tokens * len({line.prompt for line in lines})
    return EngineResult(computed / distinct, seconds)


def makespan(seconds: Sequence[float], permits: int) -> float:
    """Return the time in seconds from the first request to the last response.

    Args:
        seconds: duration of each request, in sending order.
        permits: maximum number of requests in flight.
    """
    clock, waiting = Clock(), iter(seconds)
    last = 0.0

    def send() -> None:
        nonlocal last
        last = clock.now
        taken = next(waiting, math.inf)
        if taken < math.inf:
            clock.after(taken, send)

    for _ in range(permits):
        send()
    clock.run(_MAX_SECONDS)
    return last
