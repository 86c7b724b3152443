"""Rates over the whole fleet: which are in effect, how they are shared out, and what a turn may send of them.

RatesConflict   the models' own rates leave nothing of the rate over all models
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from batchwright.contracts.names import DISPATCH_QUEUE, inference_queue
from batchwright.rules.ids import safe_name

ALL_MODELS = ""  # in place of a model's name: the rate over all of them
TURN_SECONDS = 5.0  # what a turn sends at most, in seconds of its rate
TURN_LINES = 256  # and in requests: the same for every worker, or the queue's limit would not be the rate
# Requests/s: one in a thousand seconds is the least a rate, or what is left of one, can be.
LEAST, MOST = 0.001, 1_000_000.0


class RatesConflict(ValueError):
    """Nothing is left for the models without a rate of their own; the message names both sides."""


class Rate(NamedTuple):
    """Requests/s, 0: no limit. `changed`: at run time; else it is the setting's."""

    requests_per_second: float
    changed: bool = False


class Pacing(NamedTuple):
    """A rate as queue and turns keep it: `lines` sends a turn at most, times turns per second."""

    requests_per_second: float
    lines: int

    @property
    def interval_seconds(self) -> float:
        """Between two sends of a turn."""
        return 1.0 / self.requests_per_second

    @property
    def turns_per_second(self) -> float:
        """The limit on the task queue."""
        return self.requests_per_second / self.lines


@dataclass(frozen=True)
class Rates:
    """Every rate in effect, by model; `ALL_MODELS` for the one over all."""

    entries: Mapping[str, Rate]

    def own(self, model: str) -> float:
        """0: it has none of its own."""
        return self._of(model) if model != ALL_MODELS else 0.0

    @property
    def over_all(self) -> float:
        """0: no limit."""
        return self._of(ALL_MODELS)

    def is_shared(self, model: str) -> bool:
        """Whether the model shares what the others leave of the rate over all."""
        return self.over_all > 0 and not self.own(model)

    def left(self, models: Iterable[str]) -> float:
        """What the own rates of `models` leave of the rate over all.

        Raises:
            RatesConflict: nothing. Without a rate over all there is no conflict, and the answer is 0.
        """
        if not self.over_all:
            return 0.0
        own = {model: self.own(model) for model in models if self.own(model)}
        left = math.fsum([self.over_all, *(-rate for rate in own.values())])
        if left < LEAST:
            raise RatesConflict(_nothing_left(self.over_all, own))
        return left

    def check(self) -> None:
        """That every model can be served, whichever are. Raises RatesConflict."""
        self.left(self.entries)

    def elsewhere(self, model: str, queue: str) -> str:
        """The queue on which the model's slices belong, if it is not this one; else empty."""
        if self.is_shared(model) == (queue == DISPATCH_QUEUE):
            return ""
        return self.queue_of(model)

    def queue_of(self, model: str) -> str:
        """The queue on which its slices belong."""
        return DISPATCH_QUEUE if self.is_shared(model) else inference_queue(safe_name(model))

    def _of(self, name: str) -> float:
        return self.entries[name].requests_per_second if name in self.entries else 0.0


def effective(settings: Mapping[str, float], changes: Mapping[str, float]) -> Rates:
    """A change stands before the setting, also one to 0."""
    rates = {name: Rate(rate) for name, rate in settings.items() if rate}
    return Rates(rates | {name: Rate(rate, changed=True) for name, rate in changes.items()})


def pacing(requests_per_second: float, slice_lines: int, turn_seconds: float = TURN_SECONDS) -> Pacing:
    """Of a rate above 0, for turns that last at most `turn_seconds`, or a single send."""
    lines = max(1, math.floor(min(turn_seconds, TURN_SECONDS) * requests_per_second))
    return Pacing(requests_per_second, min(slice_lines, TURN_LINES, lines))


@dataclass(frozen=True)
class Split:
    """Rates as pacings, per model with a rate of its own, and one for what all others share."""

    own: Mapping[str, Pacing]
    shared: Pacing | None

    def of(self, model: str) -> Pacing | None:
        return self.own.get(model) or self.shared

    def queues(self, served: Iterable[str]) -> dict[str, Pacing | None]:
        """Every queue the fleet polls, and the pacing its limit follows from; none: no limit.

        With `dispatch` in use the queues of the models that share it keep none: what still lies there moves.
        """
        own = {inference_queue(safe_name(model)): self.own.get(model) for model in served}
        return {**own, DISPATCH_QUEUE: self.shared}


def split(rates: Rates, served: Iterable[str], slice_lines: int, turn_seconds: float = TURN_SECONDS) -> Split:
    """The rate over all models, shared out: own rates and the rest add up to it. Raises RatesConflict."""
    left = rates.left(served)
    own = {model: rates.own(model) for model in rates.entries if rates.own(model)}
    return Split(
        {model: pacing(rate, slice_lines, turn_seconds) for model, rate in own.items()},
        pacing(left, slice_lines, turn_seconds) if left else None,
    )


def _nothing_left(over_all: float, own: Mapping[str, float]) -> str:
    models = ", ".join(f"{model}: {rate:g}" for model, rate in sorted(own.items()))
    return (
        f"{over_all:g} requests/s over all models leave nothing for models without a rate of their own: "
        f"the own rates of models ({models}) add up to {math.fsum(own.values()):g}"
    )
