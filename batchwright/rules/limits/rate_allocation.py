"""Compute the rate limits of models, and how many requests one turn may send.

A rate limit holds for all workers together. A turn is one attempt of a slice (part of a batch). Temporal
limits how many turns start per second.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from batchwright.contracts.temporal_names import DISPATCH_QUEUE, inference_queue
from batchwright.rules.ids import safe_name

ALL_MODELS = ""  # used as a model name: the rate over all models together
MAX_TURN_SECONDS = 5.0  # a turn sends at most what the rate allows in this time
# A turn sends at most so many requests. All workers use the same number, because the rate limit of the
# queue is derived from it.
MAX_TURN_LINES = 256
# In requests per second. The minimum also holds for what remains of a divided rate.
MIN_RATE, MAX_RATE = 0.001, 1_000_000.0


class RatesConflict(ValueError):
    """Raised if the rate limits of single models leave too little of the rate limit over all models.

    Less than `MIN_RATE` is too little. The message contains these rate limits.
    """


class EffectiveRate(NamedTuple):
    """The rate limit of one model, or of all models together, in requests per second. 0 means no limit.

    `changed` is True if the rate was set at run time, False if it comes from the settings.
    """

    requests_per_second: float
    changed: bool = False


class Pacing(NamedTuple):
    """The two maximums that enforce a rate limit: requests per turn, and turns that start per second.

    A turn is one attempt of a slice (part of a batch). In each turn, the worker sends at most `lines`
    requests. The rate limit of the task queue in Temporal limits how many turns start per second.
    """

    requests_per_second: float
    lines: int

    @property
    def interval_seconds(self) -> float:
        """Seconds between two requests of one turn (an attempt of a slice)."""
        return 1.0 / self.requests_per_second

    @property
    def turns_per_second(self) -> float:
        """Maximum number of turns that start per second: the rate limit of Temporal's task queue.

        A turn is one attempt of a slice, a part of a batch.
        """
        return self.requests_per_second / self.lines


@dataclass(frozen=True)
class RateTable:
    """All rate limits in effect, by model name. The rate over all models has the key `ALL_MODELS`.

    A rate is a number of requests per second.
    """

    entries: Mapping[str, EffectiveRate]

    def own_rate(self, model: str) -> float:
        """Return the rate that is set for this model only, in requests per second; 0 if no rate is set."""
        return self._rate_of(model) if model != ALL_MODELS else 0.0

    @property
    def overall_rate(self) -> float:
        """Rate limit that all models share, in requests per second; 0 if none is set."""
        return self._rate_of(ALL_MODELS)

    def is_shared(self, model: str) -> bool:
        """Return True if the model shares a rate limit with other models.

        A model shares a limit if it has no rate limit of its own and if there is a rate limit over all
        models. The shared limit is the limit over all models minus the limits that single models have.
        """
        return self.overall_rate > 0 and not self.own_rate(model)

    def remainder(self, models: Iterable[str]) -> float:
        """Return the rate limit over all models minus the limits of `models`, in requests per second.

        If there is no rate limit over all models, return 0, which means no limit.

        Raises:
            RatesConflict: the limits of `models` leave less than `MIN_RATE` for the other models.
        """
        if not self.overall_rate:
            return 0.0
        own = {model: self.own_rate(model) for model in models if self.own_rate(model)}
        remainder = math.fsum([self.overall_rate, *(-rate for rate in own.values())])
        if remainder < MIN_RATE:
            raise RatesConflict(_nothing_left(self.overall_rate, own))
        return remainder

    def check_remainder(self) -> None:
        """Check that the rate limits of single models do not use up the whole limit over all models.

        Raises:
            RatesConflict: the limits of single models leave less than `MIN_RATE` for the other models.
        """
        self.remainder(self.entries)

    def target_queue(self, model: str, queue: str) -> str:
        """Return the Temporal task queue to which the model's slices (parts of a batch) must move.

        If the slices can stay in `queue`, their present task queue, return an empty string. Slices must move
        if the model shares a rate limit with other models now and did not before, or the reverse.
        """
        if self.is_shared(model) == (queue == DISPATCH_QUEUE):
            return ""
        return self.queue_of(model)

    def queue_of(self, model: str) -> str:
        """Return Temporal's task queue for the model's slices.

        Models that share a rate limit share one task queue. Every other model has its own.
        """
        return DISPATCH_QUEUE if self.is_shared(model) else inference_queue(safe_name(model))

    def _rate_of(self, name: str) -> float:
        return self.entries[name].requests_per_second if name in self.entries else 0.0


def effective_rates(settings: Mapping[str, float], changes: Mapping[str, float]) -> RateTable:
    """Return all rate limits in effect, in requests per second.

    Args:
        settings: the rates in the settings, by model name; 0 is no limit.
        changes: the rates that an operator has set at run time, by model name. Each overrides the setting of
            the same name; 0 removes the limit.
    """
    rates = {name: EffectiveRate(rate) for name, rate in settings.items() if rate}
    return RateTable(rates | {name: EffectiveRate(rate, changed=True) for name, rate in changes.items()})


def pacing_for(requests_per_second: float, turn_seconds: float = MAX_TURN_SECONDS) -> Pacing:
    """Compute how many requests per turn, and how many new turns per second, keep to a rate limit.

    A turn is one attempt of a slice (part of a batch), in which a worker sends lines for a short time.

    Args:
        requests_per_second: the rate, above 0.
        turn_seconds: length of a turn, at most `MAX_TURN_SECONDS`. The number of requests per turn is this
            length multiplied by the rate, but at least 1 and at most `MAX_TURN_LINES`.
    """
    lines = max(1, math.floor(min(turn_seconds, MAX_TURN_SECONDS) * requests_per_second))
    return Pacing(requests_per_second, min(MAX_TURN_LINES, lines))


@dataclass(frozen=True)
class RateAllocation:
    """The pacing of all models. The `Pacing` of a model says how its rate limit is enforced.

    Attributes:
        own: the pacing of each model that has a rate limit of its own.
        shared: the pacing of all other models together; None if there is no rate limit over all models.
    """

    own: Mapping[str, Pacing]
    shared: Pacing | None

    def of(self, model: str) -> Pacing | None:
        return self.own.get(model) or self.shared

    def queues(self, served: Iterable[str]) -> dict[str, Pacing | None]:
        """Return the pacing of every task queue that the workers poll, by the queue's name.

        `Pacing` says how a rate limit is enforced. None means no limit.

        Models that share a rate limit use the task queue `dispatch`. Workers also poll the task queue of each
        single model. If the model shares a rate limit, they poll this task queue without a limit, and only
        move the slices in it to `dispatch`.

        Args:
            served: names of the models that the workers serve.
        """
        own = {inference_queue(safe_name(model)): self.own.get(model) for model in served}
        return {**own, DISPATCH_QUEUE: self.shared}


def allocate_rates(
    rates: RateTable, served: Iterable[str], turn_seconds: float = MAX_TURN_SECONDS
) -> RateAllocation:
    """Compute how the rate limits are enforced, so that all models together keep the overall rate limit.

    A model with a rate limit of its own gets that rate. All other models share the rest of the overall rate.

    Args:
        rates: the rate limits in effect.
        served: names of the models that the workers serve.
        turn_seconds: length of a turn (one attempt of a slice).

    Raises:
        RatesConflict: the models' own rates leave less than `MIN_RATE` for the other models.
    """
    remainder = rates.remainder(served)
    own = {model: rates.own_rate(model) for model in rates.entries if rates.own_rate(model)}
    return RateAllocation(
        {model: pacing_for(rate, turn_seconds) for model, rate in own.items()},
        pacing_for(remainder, turn_seconds) if remainder else None,
    )


def _nothing_left(over_all: float, own: Mapping[str, float]) -> str:
    models = ", ".join(f"{model}: {rate:g}" for model, rate in sorted(own.items()))
    return (
        f"{over_all:g} requests/s over all models leave nothing for models without their own rate: "
        f"the rates of single models ({models}) add up to {math.fsum(own.values()):g}"
    )
