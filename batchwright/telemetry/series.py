"""What is counted of one thing: the numbers, and the form that says where each of them is shown."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from threading import Lock
from time import perf_counter

from batchwright.telemetry.wording import INFINITE, NUMBER, Place, Sample

_BOUND = "\ud801"  # where a bucket's bound goes: as a number's place, in no text that can be written


class Page:
    """What all series of a family share: any thread may count, and what was counted is to be shown anew.

    `asks`: a number is what a function says, so that nobody knows whether it changed. `numbers`: those
    of histograms, side by side as they are shown, so that nothing is put together for a scrape.
    """

    __slots__ = ("asks", "is_stale", "lock", "numbers")

    def __init__(self) -> None:
        self.lock, self.is_stale, self.asks = Lock(), True, False
        self.numbers: list[float] = []


class Series(ABC):
    __slots__ = ("page", "place")

    def __init__(self, place: Place, page: Page) -> None:
        self.place, self.page = place, page

    def form(self) -> str:
        """Its lines, with room for its numbers."""
        return self.place.line()

    @abstractmethod
    def samples(self) -> list[Sample]: ...


class CounterSeries(Series):
    __slots__ = ("_value",)

    def __init__(self, place: Place, page: Page) -> None:
        super().__init__(place, page)
        self._value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Raises ValueError for less than nothing."""
        if amount < 0:
            raise ValueError(f"{self.place.name} only grows; it was to grow by {amount}")
        page = self.page
        with page.lock:
            self._value += amount
            page.is_stale = True

    @property
    def value(self) -> float:
        return self._value

    def samples(self) -> list[Sample]:
        return [Sample(*self.place, self._value)]


class GaugeSeries(Series):
    __slots__ = ("_asked", "_value")

    def __init__(self, place: Place, page: Page) -> None:
        super().__init__(place, page)
        self._value = 0.0
        self._asked: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        if value != self._value:
            self._value = float(value)
            self.page.is_stale = True

    def inc(self, amount: float = 1.0) -> None:
        page = self.page
        with page.lock:
            self._value += amount
            page.is_stale = True

    def dec(self, amount: float = 1.0) -> None:
        self.inc(-amount)

    def set_function(self, asked: Callable[[], float]) -> None:
        """From now on it is what `asked` says when it is shown; `asked` counts nothing in this family."""
        self._asked = asked
        self.page.asks = True

    @property
    def value(self) -> float:
        return self._value if self._asked is None else float(self._asked())

    def samples(self) -> list[Sample]:
        return [Sample(*self.place, self.value)]


class HistogramSeries(Series):
    """Its numbers are in a list that it shares: how many were at or below each bound, how many, their sum."""

    __slots__ = ("_at", "_bounds", "_les", "_numbers", "_sum_at")

    def __init__(self, place: Place, page: Page, bounds: Sequence[float]) -> None:
        super().__init__(place, page)
        self._bounds = bounds
        self._les = [*(repr(float(bound)) for bound in bounds), INFINITE]
        self._numbers: list[float] = [*([0] * (len(self._les) + 1)), 0.0]
        self._at, self._sum_at = 0, len(self._les) + 1
        self.move(page.numbers)

    def move(self, numbers: list[float]) -> None:
        """Under the lock: from now on its numbers are at the end of these."""
        mine = self._numbers[self._at : self._sum_at + 1]
        self._numbers, self._at = numbers, len(numbers)
        numbers += mine
        self._sum_at = len(numbers) - 1

    def form(self) -> str:
        whole = f"{NUMBER}.0"  # counts are integers, and shown as all numbers are
        bucket = self.place.line("_bucket", whole, le=_BOUND)
        buckets = [bucket.replace(_BOUND, le) for le in self._les]
        return "".join([*buckets, self.place.line("_count", whole), self.place.line("_sum")])

    def observe(self, amount: float) -> None:
        bucket, page = bisect_left(self._bounds, amount), self.page
        with page.lock:
            numbers = self._numbers
            for at in range(self._at + bucket, self._sum_at):
                numbers[at] += 1
            numbers[self._sum_at] += amount
            page.is_stale = True

    def observe_all(self, amounts: Sequence[float]) -> None:
        """The same of many, for a fraction of what each costs: bounds are looked up, not amounts."""
        page, ordered, below = self.page, sorted(amounts), 0
        with page.lock:
            numbers, end = self._numbers, self._sum_at
            for at, bound in enumerate(self._bounds, self._at):
                below = bisect_right(ordered, bound, below)
                numbers[at] += below
            numbers[end - 2] += len(ordered)
            numbers[end - 1] += len(ordered)
            numbers[end] += sum(ordered)
            page.is_stale = True

    @contextmanager
    def time(self) -> Generator[None]:
        """Observes the seconds that it takes."""
        began = perf_counter()
        try:
            yield
        finally:
            self.observe(perf_counter() - began)

    def samples(self) -> list[Sample]:
        name, labels = self.place
        with self.page.lock:
            *buckets, count, total = self._numbers[self._at : self._sum_at + 1]
        found = [
            Sample(f"{name}_bucket", {**labels, "le": le}, number)
            for le, number in zip(self._les, buckets, strict=True)
        ]
        return [*found, Sample(f"{name}_count", labels, count), Sample(f"{name}_sum", labels, total)]
