"""Simulates how long a batch takes if its lines are sent in different orders.

The order of the input file is compared with the order of a worker. A worker first sends the lines whose
responses probably take longest.
"""

import json
import math
from collections.abc import Callable
from random import Random

from batchwright.rules.planning.prefix_order import PlanOrder
from bench.cached_engine import makespan
from bench.prefix_order import in_order, question

PERMITS = 64
_MEDIAN_SECONDS = 30.0
_TOKENS_PER_SECOND = 30.0

# Returns `max_tokens` of a line, None for no limit, and the number of tokens of its response.
Work = Callable[[Random], tuple[int | None, float]]


def _skewed(random: Random) -> tuple[int, float]:
    """Return `max_tokens` of a random line, and the number of tokens of its response.

    `max_tokens` has one of three values. The response has between 20 % and 100 % of `max_tokens` tokens.
    """
    limit = random.choices((256, 1_024, 8_192), (70, 25, 5))[0]
    return limit, limit * random.uniform(0.2, 1.0)


def _lognormal(random: Random) -> float:
    return random.lognormvariate(math.log(_MEDIAN_SECONDS * _TOKENS_PER_SECOND), 1.0)


def _generous(random: Random) -> tuple[int, float]:
    """Return `max_tokens` of a random line, and the number of tokens of its response.

    `max_tokens` is between one and eight times the length of the response.
    """
    tokens = _lognormal(random)
    return math.ceil(tokens * 8 ** random.random()), tokens


WORKS: dict[str, Work] = {
    "three kinds of lines": _skewed,
    "max_tokens up to eight times the response": _generous,
    "equal max_tokens": lambda random: (4_096, _lognormal(random)),
    "no max_tokens": lambda random: (None, _lognormal(random)),
}


def seconds(work: Work, count: int, seed: int, order: PlanOrder) -> float:
    """Return how many seconds a batch of `count` lines takes, with `PERMITS` requests in flight.

    Args:
        work: function that returns `max_tokens` of a line, and the number of tokens of its response.
        seed: seed of the random numbers that `work` uses.
        order: order in which the lines are sent.
    """
    random = Random(seed)
    tokens: dict[bytes, float] = {}
    for number in range(count):
        limit, tokens_of_response = work(random)
        turns = [{"role": "user", "content": question(number)}]
        body = {"model": "m", "messages": turns} | ({} if limit is None else {"max_tokens": limit})
        tokens[json.dumps({"custom_id": str(number), "body": body}).encode() + b"\n"] = tokens_of_response
    lines = in_order(list(tokens), order)
    return makespan([tokens[line] / _TOKENS_PER_SECOND for line in lines], PERMITS)
