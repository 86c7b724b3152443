"""Rate limits of the whole fleet: which are in effect, how they are divided, what one turn may send.

A turn is one run of a slice on a worker. Temporal limits how many turns start per second.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from batchwright.contracts.temporal_names import DISPATCH_QUEUE, inference_queue
from batchwright.rules.ids import safe_name

ALL_MODELS = ""  # stands in place of a model's name for the rate over all models
MAX_TURN_SECONDS = 5.0  # a turn sends at most what the rate allows in this time
# A turn also sends at most so many requests. All workers use the same number, because the rate limit of the
# queue is derived from it.
MAX_TURN_LINES = 256
# In requests/s. The minimum, one request in a thousand seconds, also holds for the rest of a divided rate.
MIN_RATE, MAX_RATE = 0.001, 1_000_000.0


class RatesConflict(ValueError):
    """The rates of single models use up the whole rate over all models. The message names the rates."""


class EffectiveRate(NamedTuple):
    """The rate limit of one model, or of all models together, in requests per second. `0` means no limit.

    `changed` is True if the rate was set at run time, False if it comes from the settings.
    """

    requests_per_second: float
    changed: bool = False


class Pacing(NamedTuple):
    """How a rate is enforced: a turn sends at most `lines` requests, and the queue limits turns per second.

    A turn is one run of a slice on a worker.
    """

    requests_per_second: float
    lines: int

    @property
    def interval_seconds(self) -> float:
        """Seconds between two requests of one turn, so that the turn keeps to the rate."""
        return 1.0 / self.requests_per_second

    @property
    def turns_per_second(self) -> float:
        """Turns that Temporal may start per second, which is the rate limit of the task queue."""
        return self.requests_per_second / self.lines


@dataclass(frozen=True)
class RateTable:
    """All rate limits in effect, by model name. The key `ALL_MODELS` holds the rate over all models."""

    entries: Mapping[str, EffectiveRate]

    def own_rate(self, model: str) -> float:
        """Return the rate of this model itself, in requests per second; 0 if it has none."""
        return self._rate_of(model) if model != ALL_MODELS else 0.0

    @property
    def overall_rate(self) -> float:
        """Rate over all models together, in requests per second; 0 if none is set."""
        return self._rate_of(ALL_MODELS)

    def is_shared(self, model: str) -> bool:
        """Return True if the model shares a rate with other models.

        This is the case if there is a rate over all models and this model has no rate of its own. Such models
        share what remains after the rates of single models are subtracted.
        """
        return self.overall_rate > 0 and not self.own_rate(model)

    def remainder(self, models: Iterable[str]) -> float:
        """Return the rate over all models minus the own rates of `models`, in requests per second.

        Return 0 if there is no rate over all models, which means no limit.

        Raises:
            RatesConflict: the own rates leave nothing.
        """
        if not self.overall_rate:
            return 0.0
        own = {model: self.own_rate(model) for model in models if self.own_rate(model)}
        remainder = math.fsum([self.overall_rate, *(-rate for rate in own.values())])
        if remainder < MIN_RATE:
            raise RatesConflict(_nothing_left(self.overall_rate, own))
        return remainder

    def check_remainder(self) -> None:
        """Check that the rates of single models leave something of the rate over all models.

        The other models share what is left.

        Raises:
            RatesConflict: nothing is left.
        """
        self.remainder(self.entries)

    def target_queue(self, model: str, queue: str) -> str:
        """Return the queue to which the model's slices must move; empty if `queue` is the right one."""
        if self.is_shared(model) == (queue == DISPATCH_QUEUE):
            return ""
        return self.queue_of(model)

    def queue_of(self, model: str) -> str:
        """Return the queue of the model's slices: the common one if its rate is shared, otherwise its own."""
        return DISPATCH_QUEUE if self.is_shared(model) else inference_queue(safe_name(model))

    def _rate_of(self, name: str) -> float:
        return self.entries[name].requests_per_second if name in self.entries else 0.0


def effective_rates(settings: Mapping[str, float], changes: Mapping[str, float]) -> RateTable:
    """Return all rates in effect, from settings and changes at run time, both in requests per second.

    A change overrides the setting of the same name. A change to 0 removes the limit.
    """
    rates = {name: EffectiveRate(rate) for name, rate in settings.items() if rate}
    return RateTable(rates | {name: EffectiveRate(rate, changed=True) for name, rate in changes.items()})


def pacing_for(requests_per_second: float, turn_seconds: float = MAX_TURN_SECONDS) -> Pacing:
    """Return how to enforce a rate, which must be above 0.

    A turn, one run of a slice, may send what the rate allows in `turn_seconds`, but at least one request.
    """
    lines = max(1, math.floor(min(turn_seconds, MAX_TURN_SECONDS) * requests_per_second))
    return Pacing(requests_per_second, min(MAX_TURN_LINES, lines))


@dataclass(frozen=True)
class RateAllocation:
    """How each model is paced: `own` for models with a rate of their own, `shared` for all others together.

    `shared` is None if there is no rate over all models.
    """

    own: Mapping[str, Pacing]
    shared: Pacing | None

    def of(self, model: str) -> Pacing | None:
        return self.own.get(model) or self.shared

    def queues(self, served: Iterable[str]) -> dict[str, Pacing | None]:
        """Return the pacing of every queue that the fleet polls, by queue name; None means no limit.

        Models that share a rate also share the `dispatch` queue. The own queue of such a model is polled,
        too, but has no limit, because slices found there are only moved to the `dispatch` queue.
        """
        own = {inference_queue(safe_name(model)): self.own.get(model) for model in served}
        return {**own, DISPATCH_QUEUE: self.shared}


def allocate_rates(
    rates: RateTable, served: Iterable[str], turn_seconds: float = MAX_TURN_SECONDS
) -> RateAllocation:
    """Divide the rate over all models: models with an own rate get that rate, all others share the remainder.

    Raises:
        RatesConflict: the own rates leave nothing to share.
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
