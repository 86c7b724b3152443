"""Counters, gauges and histograms that write themselves in Prometheus' text format.

A series' name and labels are put into words once, when it is made, and its numbers only if they have changed
since. prometheus_client's own are put together again at every scrape: thousands of series take tens of
milliseconds of a process that has other things to do.
A family is a collector of its registry all the same.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from threading import Lock
from time import perf_counter
from typing import Generic, TypeVar

from prometheus_client import Metric
from prometheus_client.registry import Collector

from batchwright.telemetry.wording import INFINITE, Place, Sample, in_words, with_room


class Series(ABC):
    """Any thread may count."""

    def __init__(self, place: Place) -> None:
        self._place, self._lock = place, Lock()

    @abstractmethod
    def text(self) -> bytes: ...

    @abstractmethod
    def samples(self) -> list[Sample]: ...


class CounterSeries(Series):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._head, self._value = place.head(), 0.0
        self._text = b""  # as it was last shown, empty since it was counted

    def inc(self, amount: float = 1.0) -> None:
        """Raises ValueError for less than nothing."""
        if amount < 0:
            raise ValueError(f"{self._place.name} only grows; it was to grow by {amount}")
        with self._lock:
            self._value += amount
            self._text = b""

    @property
    def value(self) -> float:
        return self._value

    def text(self) -> bytes:
        with self._lock:
            self._text = self._text or f"{self._head}{in_words(self._value)}\n".encode()
            return self._text

    def samples(self) -> list[Sample]:
        return [Sample(*self._place, self._value)]


class GaugeSeries(Series):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._head, self._value = place.head(), 0.0
        self._asked: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        self._value = float(value)

    def inc(self, amount: float = 1.0) -> None:
        with self._lock:
            self._value += amount

    def dec(self, amount: float = 1.0) -> None:
        self.inc(-amount)

    def set_function(self, asked: Callable[[], float]) -> None:
        """From now on it is what `asked` says when it is shown."""
        self._asked = asked

    @property
    def value(self) -> float:
        return self._value if self._asked is None else float(self._asked())

    def text(self) -> bytes:
        return f"{self._head}{in_words(self.value)}\n".encode()

    def samples(self) -> list[Sample]:
        return [Sample(*self._place, self.value)]


class HistogramSeries(Series):
    def __init__(self, place: Place, bounds: Sequence[float]) -> None:
        super().__init__(place)
        self._bounds = bounds
        self._les = [*map(in_words, bounds), INFINITE]
        heads = [place.head("_bucket", le=le) for le in self._les]
        self._form = with_room([*heads, place.head("_count")], place.head("_sum"))
        self._counts, self._sum = [0] * len(self._les), 0.0
        self._text = b""  # as it was last shown, empty since something was observed

    def observe(self, amount: float) -> None:
        bucket = bisect_left(self._bounds, amount)
        with self._lock:
            self._counts[bucket] += 1
            self._sum += amount
            self._text = b""

    def observe_all(self, amounts: Sequence[float]) -> None:
        """The same of many, for half of what each costs by itself."""
        with self._lock:
            for amount in amounts:
                self._counts[bisect_left(self._bounds, amount)] += 1
            self._sum += sum(amounts)
            self._text = b""

    @contextmanager
    def time(self) -> Generator[None]:
        """Observes the seconds that it takes."""
        began = perf_counter()
        try:
            yield
        finally:
            self.observe(perf_counter() - began)

    def text(self) -> bytes:
        with self._lock:
            if not self._text:
                counts = [*map(str, accumulate(self._counts))]
                pieces = self._form.copy()
                pieces[1::2] = [*counts, counts[-1], in_words(self._sum)]
                self._text = "".join(pieces).encode()
            return self._text

    def samples(self) -> list[Sample]:
        (name, labels), (counts, total) = self._place, self._now()
        found: list[Sample] = []
        count = 0
        for le, more in zip(self._les, counts, strict=True):
            count += more
            found.append(Sample(f"{name}_bucket", {**labels, "le": le}, count))
        return [*found, Sample(f"{name}_count", labels, count), Sample(f"{name}_sum", labels, total)]

    def _now(self) -> tuple[list[int], float]:
        with self._lock:
            return self._counts.copy(), self._sum


_Series = TypeVar("_Series", bound=Series)


class Family(Collector, Generic[_Series]):
    """All series of a name; one without labels has one series, from the start."""

    kind = ""

    def __init__(
        self, name: str, meaning: str, labels: Sequence[str], made: Callable[[Place], _Series]
    ) -> None:
        self.name, self.meaning, self.label_names = name, meaning, tuple(labels)
        self._made, self._lock = made, Lock()
        said = meaning.replace("\\", r"\\").replace("\n", r"\n")
        self._title = f"# HELP {name} {said}\n# TYPE {name} {self.kind}\n".encode()
        self._series: dict[tuple[str, ...], _Series] = {}
        self._only: _Series | None = None
        if not labels:
            self._only = self._series[()] = made(Place(name, {}))

    @property
    def only(self) -> _Series:
        """Raises ValueError where there are labels."""
        if self._only is None:
            raise ValueError(f"{self.name} has a series for each {', '.join(self.label_names)}: say which")
        return self._only

    def labels(self, *values: object) -> _Series:
        """The series of these values, in the order of the labels; it is made at the first call."""
        key = tuple([value if type(value) is str else str(value) for value in values])
        found = self._series.get(key)
        return found if found is not None else self._make(key)

    def _make(self, key: tuple[str, ...]) -> _Series:
        if len(key) != len(self.label_names) or not key:
            raise ValueError(f"{self.name} has the labels {self.label_names}, not {len(key)} of them")
        with self._lock:
            if key not in self._series:
                place = Place(self.name, dict(zip(self.label_names, key, strict=True)))
                self._series[key] = self._made(place)
            return self._series[key]

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """Takes away every series that has all of these."""
        wanted = [(self.label_names.index(name), value) for name, value in labels.items()]
        with self._lock:
            for key in list(self._series):
                if all(key[place] == value for place, value in wanted):
                    del self._series[key]

    def clear(self) -> None:
        """Takes away all series that have labels."""
        if self._only is None:
            with self._lock:
                self._series.clear()

    def pieces(self) -> list[bytes]:
        """Its text. All families' are put together at once: copying a large text is dear."""
        return [self._title, *[series.text() for series in self._series.copy().values()]]

    def text(self) -> str:
        return b"".join(self.pieces()).decode()

    def describe(self) -> list[Metric]:
        return [Metric(self.name.removesuffix("_total"), self.meaning, self.kind)]

    def collect(self) -> list[Metric]:
        [metric] = self.describe()
        for series in self._series.copy().values():
            for sample in series.samples():
                metric.add_sample(*sample)
        return [metric]


class Counter(Family[CounterSeries]):
    kind = "counter"

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, meaning, labels, CounterSeries)

    def inc(self, amount: float = 1.0) -> None:
        self.only.inc(amount)


class Gauge(Family[GaugeSeries]):
    kind = "gauge"

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, meaning, labels, GaugeSeries)

    def set(self, value: float) -> None:
        self.only.set(value)

    def inc(self, amount: float = 1.0) -> None:
        self.only.inc(amount)

    def dec(self, amount: float = 1.0) -> None:
        self.only.dec(amount)

    def set_function(self, asked: Callable[[], float]) -> None:
        self.only.set_function(asked)

    def replace(self, values: Mapping[tuple[str, ...], float]) -> None:
        """From now on it has these series, by the values of their labels, and no others."""
        with self._lock:
            for key in self._series.keys() - values.keys():
                del self._series[key]
        for key, value in values.items():
            self.labels(*key).set(value)


class Histogram(Family[HistogramSeries]):
    kind = "histogram"

    def __init__(self, name: str, meaning: str, labels: Sequence[str], buckets: Sequence[float]) -> None:
        bounds = tuple(map(float, buckets))
        super().__init__(name, meaning, labels, lambda place: HistogramSeries(place, bounds))

    def observe(self, amount: float) -> None:
        self.only.observe(amount)

    @contextmanager
    def time(self) -> Generator[None]:
        """Observes the seconds that it takes."""
        with self.only.time():
            yield
