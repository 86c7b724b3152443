"""Classes for metric series. A series has the values of one metric for one combination of label values."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from threading import Lock
from time import perf_counter

from batchwright.telemetry.prometheus.text_format import INFINITY, NUMBER_PLACEHOLDER, MetricSample, SeriesId

_BOUND_PLACEHOLDER = "\ud801"  # stands for a bucket's bound; like NUMBER_PLACEHOLDER, it occurs in no text


class FamilyState:
    """Data that all series of one metric share. Any thread may update a series.

    Attributes:
        is_stale: True if a value has changed, or a series was added or removed, since the last request for
            /metrics.
        has_callbacks: True if the value of at least one series comes from a function that is called at each
            request for /metrics.
        numbers: values of all series of a histogram, in the order in which they appear in the text of
            /metrics; empty for counters and gauges.
    """

    __slots__ = ("has_callbacks", "is_stale", "lock", "numbers")

    def __init__(self) -> None:
        self.lock, self.is_stale, self.has_callbacks = Lock(), True, False
        self.numbers: list[float] = []


class MetricSeries(ABC):
    __slots__ = ("id", "state")

    def __init__(self, id: SeriesId, state: FamilyState) -> None:
        self.id, self.state = id, state

    def template(self) -> str:
        """Return the text of the series in /metrics, with placeholders for its values."""
        return self.id.line()

    @abstractmethod
    def samples(self) -> list[MetricSample]: ...


class CounterSeries(MetricSeries):
    __slots__ = ("_value",)

    def __init__(self, id: SeriesId, state: FamilyState) -> None:
        super().__init__(id, state)
        self._value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Increase the counter by `amount`.

        Raises:
            ValueError: `amount` is negative.
        """
        if amount < 0:
            raise ValueError(f"The counter {self.id.name} cannot be increased by {amount}: it is negative.")
        state = self.state
        with state.lock:
            self._value += amount
            state.is_stale = True

    @property
    def value(self) -> float:
        return self._value

    def samples(self) -> list[MetricSample]:
        return [MetricSample(*self.id, self._value)]


class GaugeSeries(MetricSeries):
    __slots__ = ("_callback", "_value")

    def __init__(self, id: SeriesId, state: FamilyState) -> None:
        super().__init__(id, state)
        self._value = 0.0
        self._callback: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        if value != self._value:
            self._value = float(value)
            self.state.is_stale = True

    def inc(self, amount: float = 1.0) -> None:
        state = self.state
        with state.lock:
            self._value += amount
            state.is_stale = True

    def dec(self, amount: float = 1.0) -> None:
        self.inc(-amount)

    def set_function(self, callback: Callable[[], float]) -> None:
        """Set a function that returns the value of the gauge. Each request for /metrics calls the function.

        The function must not update a series of the same metric.
        """
        self._callback = callback
        self.state.has_callbacks = True

    @property
    def value(self) -> float:
        return self._value if self._callback is None else float(self._callback())

    def samples(self) -> list[MetricSample]:
        return [MetricSample(*self.id, self.value)]


class HistogramSeries(MetricSeries):
    """A series of a histogram: cumulative counts of buckets, count of all amounts, and sum of all amounts.

    All series of a histogram store these numbers in the same list, `FamilyState.numbers`.
    """

    __slots__ = ("_bounds", "_les", "_numbers", "_start", "_sum_at")

    def __init__(self, id: SeriesId, state: FamilyState, bounds: Sequence[float]) -> None:
        super().__init__(id, state)
        self._bounds = bounds
        self._les = [*(repr(float(bound)) for bound in bounds), INFINITY]
        self._numbers: list[float] = [*([0] * (len(self._les) + 1)), 0.0]
        self._start, self._sum_at = 0, len(self._les) + 1
        self.move(state.numbers)

    def move(self, numbers: list[float]) -> None:
        """Copy the numbers of this series to the end of `numbers`, and use only this list from now on.

        The caller must hold the lock of the metric.
        """
        own = self._numbers[self._start : self._sum_at + 1]
        self._numbers, self._start = numbers, len(numbers)
        numbers += own
        self._sum_at = len(numbers) - 1

    def template(self) -> str:
        whole = f"{NUMBER_PLACEHOLDER}.0"  # counts are kept as integers and written as floats
        bucket = self.id.line("_bucket", whole, le=_BOUND_PLACEHOLDER)
        buckets = [bucket.replace(_BOUND_PLACEHOLDER, le) for le in self._les]
        return "".join([*buckets, self.id.line("_count", whole), self.id.line("_sum")])

    def observe(self, amount: float) -> None:
        bucket, state = bisect_left(self._bounds, amount), self.state
        with state.lock:
            numbers = self._numbers
            for at in range(self._start + bucket, self._sum_at):
                numbers[at] += 1
            numbers[self._sum_at] += amount
            state.is_stale = True

    def observe_all(self, amounts: Sequence[float]) -> None:
        """Add many values to the histogram in one call. This is faster than a call of `observe` for each
        value.
        """
        state, ordered, below = self.state, sorted(amounts), 0
        with state.lock:
            numbers, end = self._numbers, self._sum_at
            for at, bound in enumerate(self._bounds, self._start):
                below = bisect_right(ordered, bound, below)
                numbers[at] += below
            numbers[end - 2] += len(ordered)
            numbers[end - 1] += len(ordered)
            numbers[end] += sum(ordered)
            state.is_stale = True

    @contextmanager
    def time(self) -> Generator[None]:
        """Context manager that adds the duration of its block to the histogram, in seconds."""
        started = perf_counter()
        try:
            yield
        finally:
            self.observe(perf_counter() - started)

    def samples(self) -> list[MetricSample]:
        name, labels = self.id
        with self.state.lock:
            *buckets, count, total = self._numbers[self._start : self._sum_at + 1]
        samples = [
            MetricSample(f"{name}_bucket", {**labels, "le": le}, number)
            for le, number in zip(self._les, buckets, strict=True)
        ]
        return [
            *samples,
            MetricSample(f"{name}_count", labels, count),
            MetricSample(f"{name}_sum", labels, total),
        ]
