"""The in-flight limit of each backend of this process, shared by the models it serves (rules/inflight.py)."""

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from batchwright.inference.client import Outcome
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


class Placed(NamedTuple):
    """A request that is under way, sent `among` so many at its backend, itself included."""

    url: str
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
        self._policy, self._backends_of, self._clock = policy, backends_of, clock
        self._limits: dict[str, InFlightLimit] = {}
        self._in_flight: dict[str, int] = {}
        self._unplaced = 0  # of all models
        self._metrics = metrics

    def has_room(self, model: str) -> bool:
        """Whether some backend of the model may get one more; a model without a backend is not held back."""
        urls = self._backends_of(model)
        if not urls:
            return True
        free = -self._unplaced
        for url in urls:
            free += max(0, self._limit(url).current - self.in_flight(url))
        return free > 0

    def is_full(self, url: str) -> bool:
        """For whoever chooses among backends."""
        return self.in_flight(url) >= self.limit_of(url)

    def limit_of(self, url: str) -> int:
        return self._limit(url).current

    def most_of(self, model: str) -> int | None:
        """The limits of the model's backends together; None where it has none."""
        urls = self._backends_of(model)
        return sum(self.limit_of(url) for url in urls) if urls else None

    def in_flight(self, url: str) -> int:
        return self._in_flight.get(url, 0)

    def expect(self) -> None:
        """A permit was granted; `unexpect` follows, and then maybe `place`."""
        self._unplaced += 1

    def unexpect(self) -> None:
        self._unplaced -= 1

    def place(self, model: str, url: str) -> Placed:
        """The request goes to this backend; `leave` follows, whatever becomes of it."""
        self._limit(url)
        self._in_flight[url] = among = self.in_flight(url) + 1
        return Placed(url, model, self._clock(), among)

    def tell(self, placed: Placed, outcome: Outcome) -> None:
        """How it ended; before `leave`."""
        if not self._policy.adaptive:
            return
        change = self._limit(placed.url).ended(
            signal_of(outcome),
            sent_at=placed.sent_at,
            now=self._clock(),
            in_flight=self.in_flight(placed.url),
            among=placed.among,
            # Twice as long an answer took about twice as long to write.
            kind=(placed.model, len(outcome.body).bit_length()),
        )
        if change is not None:
            self._metrics.backend_limit_changes.labels(placed.url, change).inc()

    def leave(self, placed: Placed) -> None:
        self._in_flight[placed.url] -= 1

    def keep(self, urls: Collection[str]) -> None:
        """Forgets what was learnt of all other backends, where nothing is in flight any more."""
        for url in [url for url in self._limits if url not in urls and not self.in_flight(url)]:
            del self._limits[url]
            self._in_flight.pop(url, None)
            for family in (self._metrics.backend_in_flight, self._metrics.backend_in_flight_max):
                family.remove_by_labels({"backend": url})

    def _limit(self, url: str) -> InFlightLimit:
        found = self._limits.get(url)
        if found is None:
            policy = self._policy
            tolerance = _SHARED_TOLERANCE if policy.shared else _TOLERANCE
            bounds = Bounds(min(policy.floor, policy.ceiling), policy.ceiling, tolerance)
            found = self._limits[url] = InFlightLimit(bounds, self._clock())
            self._show(url, found)
        return found

    def _show(self, url: str, limit: InFlightLimit) -> None:
        metrics = self._metrics
        metrics.backend_in_flight.labels(url).set_function(lambda: self.in_flight(url))
        metrics.backend_in_flight_max.labels(url).set_function(lambda: limit.current)


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
