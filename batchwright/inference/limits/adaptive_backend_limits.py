"""Limits how many requests this process has in flight at each backend.

The limit of a backend adapts to the backend's responses. All models of the backend share the limit.
"""

import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from batchwright.inference.request_outcome import Outcome
from batchwright.rules.dispatch.retry_policy import SUCCESS, Category
from batchwright.rules.limits.adaptive_limit import AdaptiveLimit
from batchwright.rules.limits.backend_load import LoadSignal
from batchwright.rules.limits.limit_trial import LimitBounds
from batchwright.telemetry.metrics import Metrics

# Latency that is tolerated, relative to the baseline. Less is tolerated with interactive traffic.
_TOLERANCE, _INTERACTIVE_TOLERANCE = 1.5, 1.25


class AdaptiveLimitPolicy(NamedTuple):
    """Settings for the adaptive limits of a process: how many requests each backend may have in flight.

    The responses of a backend raise or lower its adaptive limit. The limit is never higher than `ceiling`
    requests. If `adaptive` is False, the limit is always `ceiling`.
    """

    adaptive: bool = True
    ceiling: int = 100
    interactive: bool = False  # True if every backend also serves interactive traffic


@dataclass(slots=True, eq=False)
class BackendUsage:
    """Requests in flight at one backend, over all models, and the limits that apply to them.

    `limit` is the adaptive limit of this process. The backend may also have a fleet-wide limit, which all
    processes share. `share` is this process's part of the fleet-wide limit; `sys.maxsize` if there is none.
    """

    url: str
    limit: AdaptiveLimit
    share: int
    in_flight: int = 0

    @property
    def max_in_flight(self) -> int:
        """Maximum number of requests that this process may have in flight at the backend."""
        return min(self.limit.current, self.share)


class PlacedRequest(Struct, eq=False):
    """A request that is counted as in flight at a certain backend.

    Attributes:
        sent_at: when the request was sent, in seconds of the limits' clock.
        in_flight_when_sent: number of requests in flight at the backend when this request was sent, including
            this request.
        has_outcome: True if the request's outcome has been reported to the adaptive limit of the backend.
    """

    use: BackendUsage
    model: str
    sent_at: float
    in_flight_when_sent: int
    has_outcome: bool = False


class BackendLimits:
    """The requests in flight at each backend, and a limit for each backend that adapts to its responses.

    A permit (the right to have one request in flight) is granted before a backend is chosen for the request.
    Until a backend is chosen, `has_room` counts the permit as one more request at the backends.
    """

    def __init__(
        self,
        policy: AdaptiveLimitPolicy,
        backends_of: Callable[[str], Collection[str]],
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the limits of one process.

        Args:
            policy: bounds of the limits.
            backends_of: returns the URLs of the backends that may get requests for the given model now.
            metrics: receives the limits and the requests in flight of each backend.
            clock: returns the current time in seconds.
        """
        self._policy, self.clock = policy, clock
        self.backends_of = backends_of
        self._uses: dict[str, BackendUsage] = {}
        self.interactive: frozenset[str] = frozenset()  # URLs that also serve interactive traffic
        self._shares: Mapping[str, int] = {}
        self.unplaced = 0  # number of permits, over all models, without a backend yet
        self._metrics = metrics

    def has_room(self, urls: Collection[str]) -> bool:
        """Return True if one of the backends `urls` may get another request, or if `urls` is empty.

        A permit for which no backend is chosen yet takes one free place of these backends, because its
        request may be sent to one of them.
        """
        if not urls:
            return True
        free = -self.unplaced
        for url in urls:
            use = self._uses.get(url) or self._usage_of(url)
            most = use.limit.current
            if most > use.share:  # faster than the property `max_in_flight`
                most = use.share
            if use.in_flight < most:
                free += most - use.in_flight
        return free > 0

    def is_full(self, url: str) -> bool:
        use = self._usage_of(url)
        return use.in_flight >= use.max_in_flight

    def has_used_share(self, url: str) -> bool:
        """Return True if this process has used up its part of the backend's fleet-wide limit.

        All processes together share this limit of requests in flight. After the part is used up, the process
        may send a further request to the backend only when one of its requests to this backend has ended.
        """
        use = self._uses.get(url) or self._usage_of(url)
        return use.in_flight >= use.share

    def has_share(self, url: str) -> bool:
        """Return True if this process may send requests to the backend at all.

        All processes together share the backend's fleet-wide limit. Return False if this process's part of
        the limit is 0.
        """
        return self._shares.get(url, 1) > 0

    def limit_of(self, url: str) -> int:
        return self._usage_of(url).max_in_flight

    def limit_of_model(self, model: str) -> int | None:
        """Return the sum of the limits of the model's backends; None if the model has no backend.

        The limit of a backend is the maximum number of this process's requests in flight, for all models
        together.
        """
        urls = self.backends_of(model)
        return sum(self.limit_of(url) for url in urls) if urls else None

    def place(self, model: str, url: str, before: PlacedRequest | None = None) -> PlacedRequest:
        """Count a request as in flight at the backend `url`. Return the record to pass to `release`.

        Args:
            model: the model of the request.
            url: the backend that gets the request.
            before: None if the request had no backend yet. If the request moves from another backend, the
                record that the earlier call returned. The request no longer counts at the other backend.
        """
        if before is None:
            self.unplaced -= 1
        else:
            before.use.in_flight -= 1
        use = self._uses.get(url) or self._usage_of(url)
        use.in_flight += 1
        return PlacedRequest(use, model, self.clock(), use.in_flight)

    def record_outcome(self, placed: PlacedRequest, outcome: Outcome) -> None:
        """Report how a request ended, so that its backend's limit can adapt. Call this before `release`."""
        if not self._policy.adaptive:
            return
        use, placed.has_outcome = placed.use, True
        change = use.limit.on_complete(
            LoadSignal.RESPONDED if outcome.verdict is SUCCESS else load_signal(outcome),
            sent_at=placed.sent_at,
            now=self.clock(),
            in_flight=use.in_flight,
            in_flight_when_sent=placed.in_flight_when_sent,
            # A response that is twice as long takes about twice as much time to generate.
            kind=(placed.model, len(outcome.body).bit_length()),
        )
        if change is not None:
            self._metrics.backend_limit_changes.labels(use.url, change).inc()

    def search_free_slots(self, urls: Collection[str]) -> None:
        """Raise the limits of full backends by one request, to test if they accept more requests again.

        A backend is full if its adaptive limit is used up. If the backend has refused requests because of
        other clients, and has then sent no response for a long time, its limit is raised. All other limits
        stay unchanged. Call this regularly while requests wait.
        """
        for url in urls:
            use = self._usage_of(url)
            if use.in_flight >= use.limit.current:
                use.limit.search_free_slot(self.clock())

    def release(self, placed: PlacedRequest | None) -> None:
        """Stop counting a request that has ended. `placed` is None if the request never had a backend."""
        if placed is None:
            self.unplaced -= 1
        else:
            placed.use.in_flight -= 1
            if not placed.has_outcome:
                placed.use.limit.on_aborted(placed.sent_at, self.clock())

    def retain_only(self, urls: Collection[str]) -> None:
        """Drop the limits of all backends that are not in `urls` and have no request in flight."""
        for url in [url for url, use in self._uses.items() if url not in urls and not use.in_flight]:
            del self._uses[url]
            for family in (self._metrics.backend_in_flight, self._metrics.backend_in_flight_max):
                family.remove_by_labels({"backend": url})

    def set_interactive(self, urls: Collection[str]) -> None:
        """Set the URLs of the backends that also serve interactive requests, whose clients wait for the
        answer.

        The limit of such a backend is lowered sooner if responses get slower. If `policy.interactive` is
        True, all backends are treated in this way.
        """
        self.interactive = frozenset(urls)
        for url, use in self._uses.items():
            use.limit.bounds = self._bounds(url)

    def set_shares(self, shares: Mapping[str, int]) -> None:
        """Set, for each backend, this process's part of the backend's fleet-wide limit.

        All processes together share this limit of requests in flight. The keys of `shares` are URLs of
        backends. A value may be 0. A backend that is not in `shares` has no fleet-wide limit.
        """
        self._shares = shares
        for url, use in self._uses.items():
            use.share = shares.get(url, sys.maxsize)

    def _bounds(self, url: str) -> LimitBounds:
        policy = self._policy
        is_interactive = policy.interactive or url in self.interactive
        tolerance = _INTERACTIVE_TOLERANCE if is_interactive else _TOLERANCE
        return LimitBounds(policy.ceiling, tolerance)

    def _usage_of(self, url: str) -> BackendUsage:
        found = self._uses.get(url)
        if found is not None:
            return found
        metrics = self._metrics
        use = self._uses[url] = BackendUsage(
            url, AdaptiveLimit(self._bounds(url), self.clock()), self._shares.get(url, sys.maxsize)
        )
        metrics.backend_in_flight.labels(url).set_function(lambda: use.in_flight)
        metrics.backend_in_flight_max.labels(url).set_function(lambda: use.max_in_flight)
        return use


def load_signal(outcome: Outcome) -> LoadSignal:
    """Convert the outcome of a request to a signal about the load of its backend.

    NEUTRAL means that the outcome shows nothing, for example because the backend has not answered.
    """
    if outcome.verdict is SUCCESS:
        return LoadSignal.RESPONDED
    match outcome.verdict.category:
        case Category.RATE_LIMIT | Category.SERVICE_UNAVAILABLE:
            return LoadSignal.REJECTED
        case Category.BUSY:
            return LoadSignal.BUSY
        case Category.TIMEOUT:
            return LoadSignal.TIMED_OUT
        case _:
            return LoadSignal.ANSWERED if outcome.status else LoadSignal.NEUTRAL
