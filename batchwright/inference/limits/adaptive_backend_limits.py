"""Limit on the requests of this process in flight at each backend. It adapts to the backend's responses.

All models that the backend serves share this limit.
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

    An adaptive limit is raised or lowered, as the responses of its backend show. It is at most `ceiling`
    requests. If `adaptive` is False, it stays at `ceiling`.
    """

    adaptive: bool = True
    ceiling: int = 100
    interactive: bool = False  # True if every backend also serves interactive traffic


@dataclass(slots=True, eq=False)
class BackendUsage:
    """Requests in flight at one backend, over all models, and the limits that apply to them.

    `limit` is the adaptive limit. The whole fleet of workers may also share a limit for the backend. `share`
    is this process's part of it; `sys.maxsize` if there is no such limit.
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
        in_flight_when_sent: number of requests that the backend then had in flight, including this request.
        has_outcome: True if the adaptive limit of the backend has got the outcome of the request.
    """

    use: BackendUsage
    model: str
    sent_at: float
    in_flight_when_sent: int
    has_outcome: bool = False


class BackendLimits:
    """The requests in flight at each backend, and a limit for each backend that adapts to its responses.

    A permit (the right to have one request in flight) is granted before a backend is chosen for the request.
    Until then, the permit counts at each backend that may be chosen.
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

        Permits without a backend yet also take room, because their requests may be sent to these backends.
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
        """Return the sum of the limits on requests in flight of the model's backends; None if it has no
        backend.

        The limit of a backend applies to the requests of all models together.
        """
        urls = self.backends_of(model)
        return sum(self.limit_of(url) for url in urls) if urls else None

    def place(self, model: str, url: str, before: PlacedRequest | None = None) -> PlacedRequest:
        """Count a request as in flight at the backend `url`. Return the record to pass to `release`.

        Args:
            model: the model of the request.
            url: the backend that gets the request.
            before: the record that an earlier call returned for the same request. The request then no longer
                counts at the earlier backend. None if the request had no backend yet.
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
        """Raise the limits of full backends by one request, to find out if they accept more requests again.

        A backend is full if its limit is used up. The limit changes only if the backend has refused requests
        because of other clients, and has sent no response for a long time. Call this regularly while requests
        wait.
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
        """Set this process's part of the limit of requests in flight that all processes share, for each
        backend.

        The keys of `shares` are URLs of backends. A value may be 0. A backend that is not in `shares` has no
        such limit.
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
