"""Families of counters, gauges and histograms that write themselves in Prometheus' text format.

What is said of a family's series is put into words when one is added, and all its numbers at once, if one
of them has changed since: prometheus_client puts every line together again at every scrape, and thousands of
them take tens of milliseconds of a process that has other things to do.
A family is a collector of its registry all the same.
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from prometheus_client import Metric
from prometheus_client.registry import Collector

from batchwright.telemetry.series import CounterSeries, GaugeSeries, HistogramSeries, Page, Series
from batchwright.telemetry.wording import Form, Place

_Series = TypeVar("_Series", bound=Series)
_Key = TypeVar("_Key", bound=tuple[str, ...])


class Family(Collector, Generic[_Series]):
    """All series of a name; one without labels has one series, from the start."""

    kind = ""

    def __init__(
        self, name: str, meaning: str, labels: Sequence[str], made: Callable[[Place, Page], _Series]
    ) -> None:
        self.name, self.meaning, self.label_names = name, meaning, tuple(labels)
        self._made, self._page = made, Page()
        said = meaning.replace("\\", r"\\").replace("\n", r"\n")
        self._title = f"# HELP {name} {said}\n# TYPE {name} {self.kind}\n"
        self._series: dict[tuple[str, ...], _Series] = {}
        self._form: Form | None = None  # of the series there are, once they were shown
        self._shown = b""  # the last time
        self._only: _Series | None = None
        if not labels:
            self._only = self._series[()] = made(Place(name, {}), self._page)

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
        with self._page.lock:
            if key not in self._series:
                place = Place(self.name, dict(zip(self.label_names, key, strict=True)))
                self._series[key] = self._made(place, self._page)
                self._redraw()
            return self._series[key]

    def _drop(self, keys: Sequence[tuple[str, ...]]) -> None:
        """Under the lock, as what follows."""
        for key in keys:
            del self._series[key]
            self._redraw()

    def _redraw(self) -> None:
        self._form, self._page.is_stale = None, True

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """Takes away every series that has all of these."""
        wanted = [(self.label_names.index(name), value) for name, value in labels.items()]
        with self._page.lock:
            self._drop([key for key in self._series if all(key[place] == value for place, value in wanted)])

    def clear(self) -> None:
        """Takes away all series that have labels."""
        with self._page.lock:
            self._drop([key for key in self._series if key])

    def text(self) -> bytes:
        """For one thread; any may count meanwhile."""
        page = self._page
        if page.is_stale or page.asks:
            self._shown = self._written()
        return self._shown

    def _written(self) -> bytes:
        page = self._page
        with page.lock:
            page.is_stale = False  # first: what is counted from here on is shown the next time, at least
            if self._form is None:
                self._form = Form("".join([self._title, *[one.form() for one in self._series.values()]]))
            form, numbers = self._form, self._numbers()
        return form.filled(numbers)

    @abstractmethod
    def _numbers(self) -> list[float]:
        """Under the lock: what the forms of its series have room for, in their order."""

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

    def _numbers(self) -> list[float]:
        return [one.value for one in self._series.values()]


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

    def replace(self, values: Mapping[_Key, float]) -> None:
        """From now on it has these series, by the values of their labels, and no others."""
        for key, value in values.items():
            (self._series.get(key) or self.labels(*key)).set(value)
        if len(self._series) > len(values):
            with self._page.lock:
                self._drop([*self._series.keys() - values.keys()])

    def _numbers(self) -> list[float]:
        return [one.value for one in self._series.values()]


class Histogram(Family[HistogramSeries]):
    kind = "histogram"

    def __init__(self, name: str, meaning: str, labels: Sequence[str], buckets: Sequence[float]) -> None:
        bounds = tuple(map(float, buckets))
        super().__init__(name, meaning, labels, lambda place, page: HistogramSeries(place, page, bounds))

    def observe(self, amount: float) -> None:
        self.only.observe(amount)

    @contextmanager
    def time(self) -> Generator[None]:
        """Observes the seconds that it takes."""
        with self.only.time():
            yield

    def _drop(self, keys: Sequence[tuple[str, ...]]) -> None:
        for key in keys:
            self._series[key].move([])  # whoever counts in it goes on, and is not shown
        super()._drop(keys)
        self._page.numbers = []
        for one in self._series.values():
            one.move(self._page.numbers)

    def _numbers(self) -> list[float]:
        return self._page.numbers.copy()
