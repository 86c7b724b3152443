"""The in-flight limit of each backend of this process, shared by the models it serves (rules/inflight.py)."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from batchwright.inference.outcomes import Outcome
from batchwright.rules.inflight import InFlightLimit
from batchwright.rules.load import Bounds, Signal
from batchwright.rules.retries import SUCCESS, Category
from batchwright.telemetry.metrics import Metrics

# Where interactive traffic shares the backend, it is given way to sooner.
_TOLERANCE, _SHARED_TOLERANCE = 1.5, 1.25


class Policy(NamedTuple):
    """How limits are made. Not adaptive: they stay at their ceiling."""

    adaptive: bool = True
    floor: int = 1
    ceiling: int = 100
    shared: bool = False  # with interactive traffic


@dataclass(slots=True, eq=False)
class Use:
    """Of one backend, by all models."""

    url: str
    limit: InFlightLimit
    in_flight: int = 0


class Placed(Struct, eq=False):
    """A request that is under way, sent `among` so many at its backend, itself included."""

    use: Use
    model: str
    sent_at: float
    among: int


class BackendLimits:
    """Counts what each backend has in flight, and learns from how it answers how much that may be.

    A permit is granted before it is known which of a model's backends will get the request: until then
    it counts at all of them.
    """

    def __init__(
        self,
        policy: Policy,
        backends_of: Callable[[str], Collection[str]],
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`backends_of` a model: the URLs that may get its requests now."""
        self._policy, self._clock = policy, clock
        self.of = backends_of  # the URLs that may get a model's requests now
        self._uses: dict[str, Use] = {}
        self.unplaced = 0  # permits of all models that were granted; `leave` follows, and then maybe `place`
        self._metrics = metrics

    def has_room(self, urls: Collection[str]) -> bool:
        """Whether some of these backends may get one more; a model without a backend is not held back."""
        if not urls:
            return True
        free = -self.unplaced
        for url in urls:
            use = self._uses.get(url) or self._made(url)
            if use.in_flight < use.limit.current:
                free += use.limit.current - use.in_flight
        return free > 0

    def is_full(self, url: str) -> bool:
        """For whoever chooses among backends."""
        use = self._use(url)
        return use.in_flight >= use.limit.current

    def limit_of(self, url: str) -> int:
        return self._use(url).limit.current

    def most_of(self, model: str) -> int | None:
        """The limits of the model's backends together; None where it has none."""
        urls = self.of(model)
        return sum(self.limit_of(url) for url in urls) if urls else None

    def in_flight(self, url: str) -> int:
        use = self._uses.get(url)
        return 0 if use is None else use.in_flight

    def place(self, model: str, url: str, before: Placed | None = None) -> Placed:
        """The request goes to this backend, `before` to another; `leave` follows, whatever becomes of it."""
        if before is None:
            self.unplaced -= 1
        else:
            before.use.in_flight -= 1
        use = self._uses.get(url) or self._made(url)
        use.in_flight += 1
        return Placed(use, model, self._clock(), use.in_flight)

    def tell(self, placed: Placed, outcome: Outcome) -> None:
        """How it ended; before `leave`."""
        if not self._policy.adaptive:
            return
        use = placed.use
        change = use.limit.ended(
            Signal.ANSWERED if outcome.verdict is SUCCESS else signal_of(outcome),
            sent_at=placed.sent_at,
            now=self._clock(),
            in_flight=use.in_flight,
            among=placed.among,
            # Twice as long an answer took about twice as long to write.
            kind=(placed.model, len(outcome.body).bit_length()),
        )
        if change is not None:
            self._metrics.backend_limit_changes.labels(use.url, change).inc()

    def leave(self, placed: Placed | None) -> None:
        """None: it was not placed anywhere yet."""
        if placed is None:
            self.unplaced -= 1
        else:
            placed.use.in_flight -= 1

    def keep(self, urls: Collection[str]) -> None:
        """Forgets what was learnt of all other backends, where nothing is in flight any more."""
        for url in [url for url, use in self._uses.items() if url not in urls and not use.in_flight]:
            del self._uses[url]
            for family in (self._metrics.backend_in_flight, self._metrics.backend_in_flight_max):
                family.remove_by_labels({"backend": url})

    def _use(self, url: str) -> Use:
        return self._uses.get(url) or self._made(url)

    def _made(self, url: str) -> Use:
        policy, metrics = self._policy, self._metrics
        tolerance = _SHARED_TOLERANCE if policy.shared else _TOLERANCE
        bounds = Bounds(min(policy.floor, policy.ceiling), policy.ceiling, tolerance)
        use = self._uses[url] = Use(url, InFlightLimit(bounds, self._clock()))
        metrics.backend_in_flight.labels(url).set_function(lambda: use.in_flight)
        metrics.backend_in_flight_max.labels(url).set_function(lambda: use.limit.current)
        return use


def signal_of(outcome: Outcome) -> Signal:
    """What an outcome says about how busy its backend is. A mistake in the request says nothing."""
    if outcome.verdict is SUCCESS:
        return Signal.ANSWERED
    match outcome.verdict.category:
        case Category.RATE_LIMIT | Category.SERVICE_UNAVAILABLE:
            return Signal.REFUSED
        case Category.TIMEOUT:
            return Signal.TIMED_OUT
        case _:
            return Signal.NOTHING
