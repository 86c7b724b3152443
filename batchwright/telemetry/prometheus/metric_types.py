"""Counters, gauges and histograms that produce the Prometheus text format quickly.

A metric family is all series of one metric name. Names and labels are formatted once, when a series is added.
A request for /metrics (a scrape) formats only the numbers, and only in families whose numbers have changed.
The library prometheus_client builds every line at each scrape, which takes tens of milliseconds with
thousands of series. Families are collectors of prometheus_client, so they work with its registry.
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from prometheus_client import Metric
from prometheus_client.registry import Collector

from batchwright.telemetry.prometheus.metric_series import (
    CounterSeries,
    FamilyState,
    GaugeSeries,
    HistogramSeries,
    MetricSeries,
)
from batchwright.telemetry.prometheus.text_format import SeriesId, TextTemplate

_Series = TypeVar("_Series", bound=MetricSeries)
_Key = TypeVar("_Key", bound=tuple[str, ...])


class MetricFamily(Collector, Generic[_Series]):
    """All series of one metric name. A metric without labels has exactly one series from the start."""

    kind = ""

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str],
        create: Callable[[SeriesId, FamilyState], _Series],
    ) -> None:
        self.name, self.help_text, self.label_names = name, help_text, tuple(labels)
        self._create, self._state = create, FamilyState()
        escaped = help_text.replace("\\", r"\\").replace("\n", r"\n")
        self._header = f"# HELP {name} {escaped}\n# TYPE {name} {self.kind}\n"
        self.label_bounds: Sequence[Callable[[str], str]] = []  # by label: returns the value to use
        self._series: dict[tuple[str, ...], _Series] = {}
        self._template: TextTemplate | None = None  # None after a series was added or removed
        self._text = b""  # text of the latest scrape
        self._only: _Series | None = None
        if not labels:
            self._only = self._series[()] = create(SeriesId(name, {}), self._state)

    @property
    def only(self) -> _Series:
        """The only series of a metric without labels.

        Raises:
            ValueError: the metric has labels.
        """
        if self._only is None:
            raise ValueError(f"{self.name} has labels: pass values for {', '.join(self.label_names)}.")
        return self._only

    def labels(self, *values: object) -> _Series:
        """Return the series with these label values, in the order of the label names.

        If there is no such series, create it.

        Raises:
            ValueError: the number of values differs from the number of labels.
        """
        key = tuple([value if type(value) is str else str(value) for value in values])
        series = self._series.get(key)
        return series if series is not None else self._add(key)

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """Remove every series that has all the label values in `labels`. The keys are names of labels."""
        wanted = [(self.label_names.index(name), value) for name, value in labels.items()]
        with self._state.lock:
            self._remove([key for key in self._series if all(key[place] == value for place, value in wanted)])

    def clear(self) -> None:
        """Remove all series. If the metric has no labels, its only series stays."""
        with self._state.lock:
            self._remove([key for key in self._series if key])

    def text(self) -> bytes:
        """Return all values of the metric as text for Prometheus. Only one thread at a time may call it."""
        if self._state.is_stale or self._state.has_callbacks:
            self._text = self._render()
        return self._text

    def describe(self) -> list[Metric]:
        return [Metric(self.name.removesuffix("_total"), self.help_text, self.kind)]

    def collect(self) -> list[Metric]:
        [metric] = self.describe()
        for series in self._series.copy().values():
            for sample in series.samples():
                metric.add_sample(*sample)
        return [metric]

    @abstractmethod
    def _numbers(self) -> list[float]:
        """Return the values of all series, in the order in which they appear in the text of /metrics.

        The caller must hold the lock of the metric.
        """

    def _add(self, key: tuple[str, ...]) -> _Series:
        if len(key) != len(self.label_names) or not key:
            raise ValueError(f"{self.name} has the labels {self.label_names}, but {len(key)} values came.")
        if self.label_bounds:
            key = tuple([bound(value) for bound, value in zip(self.label_bounds, key, strict=True)])
        with self._state.lock:
            if key not in self._series:
                series_id = SeriesId(self.name, dict(zip(self.label_names, key, strict=True)))
                self._series[key] = self._create(series_id, self._state)
                self._template, self._state.is_stale = None, True
            return self._series[key]

    def _remove(self, keys: Sequence[tuple[str, ...]]) -> None:
        """Remove the series with these label values (`keys`). The caller must hold the lock of the metric."""
        for key in keys:
            del self._series[key]
            self._template, self._state.is_stale = None, True

    def _render(self) -> bytes:
        state = self._state
        with state.lock:
            state.is_stale = False  # set first, so that the next scrape has changes made during this scrape
            if self._template is None:
                templates = [series.template() for series in self._series.values()]
                self._template = TextTemplate("".join([self._header, *templates]))
            template, numbers = self._template, self._numbers()
        return template.fill(numbers)


class Counter(MetricFamily[CounterSeries]):
    kind = "counter"

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, help_text, labels, CounterSeries)

    def inc(self, amount: float = 1.0) -> None:
        self.only.inc(amount)

    def _numbers(self) -> list[float]:
        return [series.value for series in self._series.values()]


class Gauge(MetricFamily[GaugeSeries]):
    kind = "gauge"

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, help_text, labels, GaugeSeries)

    def set(self, value: float) -> None:
        self.only.set(value)

    def inc(self, amount: float = 1.0) -> None:
        self.only.inc(amount)

    def dec(self, amount: float = 1.0) -> None:
        self.only.dec(amount)

    def set_function(self, callback: Callable[[], float]) -> None:
        self.only.set_function(callback)

    def replace(self, values: Mapping[_Key, float]) -> None:
        """Set the values of all series of the gauge. Remove every series that `values` does not contain.

        The keys of `values` are the label values of the series.
        """
        for key, value in values.items():
            (self._series.get(key) or self.labels(*key)).set(value)
        if len(self._series) > len(values):
            with self._state.lock:
                self._remove([*self._series.keys() - values.keys()])

    def _numbers(self) -> list[float]:
        return [series.value for series in self._series.values()]


class Histogram(MetricFamily[HistogramSeries]):
    kind = "histogram"

    def __init__(self, name: str, help_text: str, labels: Sequence[str], buckets: Sequence[float]) -> None:
        bounds = tuple(map(float, buckets))
        super().__init__(name, help_text, labels, lambda id, state: HistogramSeries(id, state, bounds))

    def observe(self, amount: float) -> None:
        self.only.observe(amount)

    @contextmanager
    def time(self) -> Generator[None]:
        """Context manager that adds the duration of its block to the histogram, in seconds."""
        with self.only.time():
            yield

    def _remove(self, keys: Sequence[tuple[str, ...]]) -> None:
        for key in keys:
            self._series[key].move([])  # code that still holds the series updates it without effect
        super()._remove(keys)
        self._state.numbers = []
        for series in self._series.values():
            series.move(self._state.numbers)

    def _numbers(self) -> list[float]:
        return self._state.numbers.copy()
