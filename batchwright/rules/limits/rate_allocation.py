"""Divide the rate limits of the whole fleet: which limits are in effect, and what one turn may send.

A turn is one attempt of a slice (part of a batch). Temporal limits how many turns start per second.
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
    """Raised if the rates of single models use up the whole rate over all models.

    The message names the rates.
    """


class EffectiveRate(NamedTuple):
    """The rate limit of one model, or of all models together, in requests per second. 0 means no limit.

    `changed` is True if the rate was set at run time, False if it comes from the settings.
    """

    requests_per_second: float
    changed: bool = False


class Pacing(NamedTuple):
    """The way in which a rate is enforced: a maximum of requests per turn, and of turns per second.

    A turn is one attempt of a slice (part of a batch). It sends at most `lines` requests. Temporal's task
    queue limits how many turns start per second.
    """

    requests_per_second: float
    lines: int

    @property
    def interval_seconds(self) -> float:
        """Seconds between two requests of one turn."""
        return 1.0 / self.requests_per_second

    @property
    def turns_per_second(self) -> float:
        """Maximum number of turns that Temporal may start per second: the rate limit of the task queue."""
        return self.requests_per_second / self.lines


@dataclass(frozen=True)
class RateTable:
    """All rate limits in effect, by model name. The rate over all models has the key `ALL_MODELS`."""

    entries: Mapping[str, EffectiveRate]

    def own_rate(self, model: str) -> float:
        """Return the rate that is set for this model only, in requests per second; 0 if no rate is set."""
        return self._rate_of(model) if model != ALL_MODELS else 0.0

    @property
    def overall_rate(self) -> float:
        """Rate limit that all models share, in requests per second; 0 if none is set."""
        return self._rate_of(ALL_MODELS)

    def is_shared(self, model: str) -> bool:
        """Return True if the model shares a rate with other models.

        A model shares a rate if it has no rate of its own and if there is a rate over all models. The shared
        rate is the rate over all models minus the models' own rates.
        """
        return self.overall_rate > 0 and not self.own_rate(model)

    def remainder(self, models: Iterable[str]) -> float:
        """Return the rate over all models minus the rates of `models`, in requests per second.

        If there is no rate over all models, return 0, which means no limit.

        Raises:
            RatesConflict: the rates of `models` leave nothing for the other models.
        """
        if not self.overall_rate:
            return 0.0
        own = {model: self.own_rate(model) for model in models if self.own_rate(model)}
        remainder = math.fsum([self.overall_rate, *(-rate for rate in own.values())])
        if remainder < MIN_RATE:
            raise RatesConflict(_nothing_left(self.overall_rate, own))
        return remainder

    def check_remainder(self) -> None:
        """Check that the rates of single models do not use up the whole rate over all models.

        Raises:
            RatesConflict: the rates of single models leave nothing for the other models.
        """
        self.remainder(self.entries)

    def target_queue(self, model: str, queue: str) -> str:
        """Return the task queue to which the model's slices must move after a rate has changed.

        The result is empty if they can stay in `queue`, the task queue in which they are now. A slice is a
        part of a batch.
        """
        if self.is_shared(model) == (queue == DISPATCH_QUEUE):
            return ""
        return self.queue_of(model)

    def queue_of(self, model: str) -> str:
        """Return the task queue of the model's slices. Models that share a rate share one queue."""
        return DISPATCH_QUEUE if self.is_shared(model) else inference_queue(safe_name(model))

    def _rate_of(self, name: str) -> float:
        return self.entries[name].requests_per_second if name in self.entries else 0.0


def effective_rates(settings: Mapping[str, float], changes: Mapping[str, float]) -> RateTable:
    """Return all rates in effect, in requests per second.

    Args:
        settings: the rates in the settings, by model name.
        changes: the rates set at run time, by model name. Each overrides the setting of the same name; 0
            removes the limit.
    """
    rates = {name: EffectiveRate(rate) for name, rate in settings.items() if rate}
    return RateTable(rates | {name: EffectiveRate(rate, changed=True) for name, rate in changes.items()})


def pacing_for(requests_per_second: float, turn_seconds: float = MAX_TURN_SECONDS) -> Pacing:
    """Compute how to enforce a rate: the maximum number of requests per turn, and of turns per second.

    A turn is one attempt of a slice (part of a batch), in which a worker sends lines for a short time.

    Args:
        requests_per_second: the rate, above 0.
        turn_seconds: length of a turn. A turn may send as many requests as the rate allows in this time, but
            at least one.
    """
    lines = max(1, math.floor(min(turn_seconds, MAX_TURN_SECONDS) * requests_per_second))
    return Pacing(requests_per_second, min(MAX_TURN_LINES, lines))


@dataclass(frozen=True)
class RateAllocation:
    """The pacing of all models: how their rate limits are enforced. `Pacing` describes this for one rate.

    Attributes:
        own: the pacing of each model that has a rate of its own.
        shared: the pacing of all other models together; None if there is no rate over all models.
    """

    own: Mapping[str, Pacing]
    shared: Pacing | None

    def of(self, model: str) -> Pacing | None:
        return self.own.get(model) or self.shared

    def queues(self, served: Iterable[str]) -> dict[str, Pacing | None]:
        """Return the pacing of every task queue that the fleet polls, by queue name; None means no limit.

        Models that share a rate use the queue `dispatch`. Each of these models also has a queue of its own.
        It is polled without a limit, only to move the slices in it to `dispatch`.

        Args:
            served: names of the models that the fleet serves.
        """
        own = {inference_queue(safe_name(model)): self.own.get(model) for model in served}
        return {**own, DISPATCH_QUEUE: self.shared}


def allocate_rates(
    rates: RateTable, served: Iterable[str], turn_seconds: float = MAX_TURN_SECONDS
) -> RateAllocation:
    """Compute how the rate limits are enforced, so that all models together keep the overall rate.

    A model with a rate of its own gets that rate. All other models share the rest of the overall rate.

    Args:
        rates: the rate limits in effect.
        served: names of the models that the fleet serves.
        turn_seconds: length of a turn.

    Raises:
        RatesConflict: the models' own rates leave nothing to share.
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
