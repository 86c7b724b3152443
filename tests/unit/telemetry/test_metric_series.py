"""Metrics in text format. prometheus_client can parse them, and gets the counted values."""

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.prometheus.metric_series import MetricSeries
from batchwright.telemetry.prometheus.metric_types import Counter, Gauge, Histogram, MetricFamily
from batchwright.telemetry.prometheus.process_metrics import ProcessMetrics
from tests.integration.starter.stacks import until

Shown = set[tuple[str, tuple[tuple[str, str], ...], float]]


def read(text: str) -> Shown:
    """Parse the text with prometheus_client, and return the result."""
    return {
        (sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def collected(family: Collector) -> Shown:
    registry = CollectorRegistry()
    registry.register(family)
    return read(generate_latest(registry).decode())


def full() -> Sequence[MetricFamily[MetricSeries]]:
    counter = Counter("some_total", "Some", ["a", "b"])
    counter.labels("x", "y").inc()
    counter.labels("x", 'a "quoted" \\ value\nin two lines').inc(2.5)
    gauge = Gauge("one_ratio", "One: with a \\ and\na break")
    gauge.set(0.25)
    callback_gauge = Gauge("asked", "Asked", ["z"])
    callback_gauge.labels("now").set_function(lambda: 7)
    seconds = Histogram("took_seconds", "Took", ["kind"], (0.1, 1, 1209600))
    for taken in (0.05, 0.1, 0.5, 1, 2e6, 3):
        seconds.labels("fast").observe(taken)
    whole = Histogram("whole_seconds", "Without labels", (), (1,))
    whole.observe(0.5)
    return [counter, gauge, callback_gauge, seconds, whole]  # pyright: ignore[reportReturnType] - each family has its own series


@pytest.mark.parametrize("number", range(5))
def test_a_family_is_written_as_prometheus_client_writes_it(number: int) -> None:
    family = full()[number]
    assert read(family.text().decode()) == collected(family)
    assert read(family.text().decode())


def test_below_a_million_a_family_is_byte_for_byte_what_prometheus_client_writes() -> None:
    metrics = Metrics()
    for number, backend in enumerate(["http://b:1", 'http://"quoted"\\%d', "http://%a/%%\n"]):
        metrics.requests.labels("100%s", backend, "200").inc(number + 0.5)
        metrics.backend_request_seconds.labels("100%s", backend).observe(0.3 * number)
        metrics.backend_request_tokens.labels("m", backend, "prompt").observe(999_999 * number / 2)
        metrics.backend_outstanding.labels(backend, "m").set(-number / 3)
    metrics.saturation.set(float("nan"))
    metrics.finalize_seconds.observe(float("inf"))
    families = [found for found in vars(metrics).values() if isinstance(found, Counter | Gauge | Histogram)]
    assert len(families) > 80
    for family in families:
        alone = CollectorRegistry()
        alone.register(family)
        assert family.text() == generate_latest(alone)


def test_a_changed_value_is_shown() -> None:
    counter, gauge = Counter("some_total", "Some", ["a"]), Gauge("some", "Some", ["a"])
    seconds = Histogram("took_seconds", "Took", ["a"], (0.1, 1))
    for change, text, end in [
        (lambda: counter.labels("x").inc(), counter.text, b'{a="x"} 1.0\n'),
        (lambda: counter.labels("x").inc(), counter.text, b'{a="x"} 2.0\n'),
        (lambda: counter.labels("y").inc(3), counter.text, b'{a="y"} 3.0\n'),
        (lambda: counter.remove_by_labels({"a": "y"}), counter.text, b'{a="x"} 2.0\n'),
        (lambda: gauge.labels("x").set(0.5), gauge.text, b'{a="x"} 0.5\n'),
        (lambda: gauge.replace({("y",): 2}), gauge.text, b'# TYPE some gauge\nsome{a="y"} 2.0\n'),
        (lambda: gauge.replace({("y",): 3}), gauge.text, b'{a="y"} 3.0\n'),
        (lambda: seconds.labels("x").observe(1), seconds.text, b'_sum{a="x"} 1.0\n'),
        (lambda: seconds.labels("x").observe(2), seconds.text, b'_sum{a="x"} 3.0\n'),
        (lambda: seconds.clear(), seconds.text, b"# TYPE took_seconds histogram\n"),
    ]:
        change()
        assert text().endswith(end)
        assert text().endswith(end)


def test_a_gauge_with_a_callback_is_read_at_every_scrape() -> None:
    answers = iter(range(1, 3))
    gauge = Gauge("asked", "Asked")
    gauge.set_function(lambda: next(answers))
    assert [gauge.text()[-4:] for _ in range(2)] == [b"1.0\n", b"2.0\n"]


def test_process_metrics_have_current_values() -> None:
    registry = CollectorRegistry()
    own = ProcessMetrics(registry)

    def counts_a_new_file() -> bool:
        """Open a file. Return True if the metric counts it. Other tests may close files meanwhile."""
        before = _open_files(own)
        with tempfile.TemporaryFile():
            return _open_files(own) == before + 1

    until(counts_a_new_file)
    shown = {name: value for name, labels, value in _own(own) if not labels}
    expected = {name: value for name, labels, value in read(generate_latest(registry).decode()) if not labels}
    for name in ("process_max_fds", "process_start_time_seconds"):
        assert shown[name] == expected[name]
    for name in ("process_virtual_memory_bytes", "process_resident_memory_bytes"):
        assert shown[name] == pytest.approx(expected[name], rel=0.2)
    assert shown["process_cpu_seconds_total"] == pytest.approx(expected["process_cpu_seconds_total"], abs=5)
    names = {name for name, _, _ in _own(own)}
    assert names == {name for name, _, _ in read(generate_latest(registry).decode())}


def _own(own: ProcessMetrics) -> Shown:
    return read(own.text().decode())


def _open_files(own: ProcessMetrics) -> float:
    [found] = [value for name, _, value in _own(own) if name == "process_open_fds"]
    return found


def test_a_histogram_counts_a_value_at_a_bound_in_the_lower_bucket() -> None:
    seconds = Histogram("took_seconds", "Took", (), (0.1, 1))
    for taken in (0.1, 0.10001, 1, 5):
        seconds.observe(taken)
    buckets = {
        dict(labels).get("le"): value
        for name, labels, value in read(seconds.text().decode())
        if "bucket" in name
    }
    assert buckets == {"0.1": 1, "1.0": 3, "+Inf": 4}
    assert ("took_seconds_count", (), 4.0) in read(seconds.text().decode())
    assert ("took_seconds_sum", (), 6.20001) in read(seconds.text().decode())


@pytest.mark.parametrize("value", [0, -1.5, 1e-9, 123456789.0, 1e300, float("inf"), float("-inf")])
def test_every_number_is_read_as_it_is(value: float) -> None:
    gauge = Gauge("some", "Some")
    gauge.set(value)
    assert read(gauge.text().decode()) == {("some", (), value)}


@given(st.lists(st.floats(), min_size=1, max_size=5))
def test_adjacent_numbers_are_read_separately(values: list[float]) -> None:
    gauge = Gauge("some", "Some", ["at"])
    for place, value in enumerate(values):
        gauge.labels(place).set(value)
    shown = [line.rpartition(" ")[2] for line in gauge.text().decode().splitlines() if line[0] != "#"]
    assert [repr(float(word)) for word in shown] == [repr(value + 0.0) for value in values]
    words = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
    assert all(word == words.get(repr(float(word)), word) for word in shown)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x85\u2028\u2029")))
def test_any_value_of_a_label_is_read_as_it_is(value: str) -> None:
    counter = Counter("some_total", "Some", ["label"])
    counter.labels(value).inc()
    assert read(counter.text().decode()) == {("some_total", (("label", value),), 1.0)}


def test_a_counter_only_grows_and_no_count_of_any_thread_is_lost() -> None:
    counter = Counter("some_total", "Some", ["a"])
    with ThreadPoolExecutor(8) as threads:
        for number in range(9000):
            threads.submit(counter.labels(number % 3).inc)
    assert [counter.labels(number).value for number in range(3)] == [3000] * 3
    with pytest.raises(ValueError, match="cannot be increased by"):
        counter.labels(1).inc(-1)


def test_removed_series_start_from_zero_again() -> None:
    counter = Counter("some_total", "Some", ["a", "b"])
    for place in (("1", "x"), ("1", "y"), ("2", "x")):
        counter.labels(*place).inc()
    counter.remove_by_labels({"a": "1"})
    assert read(counter.text().decode()) == {("some_total", (("a", "2"), ("b", "x")), 1.0)}
    counter.clear()
    assert read(counter.text().decode()) == set()


@pytest.mark.parametrize("gone", range(3))
def test_removing_a_histogram_keeps_the_values_of_the_others(gone: int) -> None:
    """The others keep their values even if code still has the removed series and updates it."""
    seconds = Histogram("took_seconds", "Took", ["a"], (0.1, 1))
    held = [seconds.labels(number) for number in range(3)]
    seconds.remove_by_labels({"a": str(gone)})
    again = seconds.labels(gone)
    for number, one in enumerate([*held, again]):
        one.observe_all([0.5] * number)
        one.observe(2.0)
    shown = {
        labels: value for name, labels, value in read(seconds.text().decode()) if name == "took_seconds_count"
    }
    assert shown == {(("a", str(number)),): 4 if number == gone else number + 1 for number in range(3)}
    assert ("took_seconds_sum", (("a", str(gone)),), 3.5) in read(seconds.text().decode())
    assert read(seconds.text().decode()) == collected(seconds)


class _Meanwhile:
    """A lock that runs `then` after its first release, as another thread might."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._lock, self._then = Lock(), then

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        then, self._then = self._then, lambda: None
        then()


def test_a_series_that_is_added_while_a_text_is_written_is_in_the_next_one() -> None:
    seconds = Histogram("took_seconds", "Took", ["a"], (0.1, 1))
    seconds.labels("x").observe(0.5)
    adds = _Meanwhile(lambda: seconds.labels("y").observe(2.0))
    seconds.labels("x").state.lock = adds  # pyright: ignore[reportAttributeAccessIssue]
    assert seconds.text().endswith(b'took_seconds_count{a="x"} 1.0\ntook_seconds_sum{a="x"} 0.5\n')
    assert seconds.text().endswith(b'took_seconds_count{a="y"} 1.0\ntook_seconds_sum{a="y"} 2.0\n')
    assert read(seconds.text().decode()) == collected(seconds)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Counter("some_total", "Some", ["a"]).inc(),
        lambda: Counter("some_total", "Some", ["a"]).labels("x", "y"),
        lambda: Counter("some_total", "Some").labels("x"),
    ],
    ids=["without its label", "with one too many", "with one it has not"],
)
def test_a_missing_label_is_an_error(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="some_total"):
        wrong()


def test_every_metric_is_shown_and_no_name_twice() -> None:
    metrics = Metrics()
    metrics.requests.labels("m", "http://b", "200").inc()
    text = metrics.render().decode()
    assert read(text) >= {("batchwright_requests_total", _labels("m", "http://b", "200"), 1.0)}
    titles = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(titles) == len(set(titles)) > 80
    assert any(line.startswith("# TYPE process_") for line in titles)


def _labels(model: str, backend: str, status: str) -> tuple[tuple[str, str], ...]:
    return ("backend", backend), ("model", model), ("status", status)


@given(st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.5, 1.0, 3.0, 2e6]) | st.floats(0, 2e6)))
def test_many_values_are_counted_like_single_ones(amounts: list[float]) -> None:
    together, single = (Histogram("took_seconds", "Took", (), (0.1, 1, 1209600)) for _ in range(2))
    together.only.observe_all(amounts)
    for amount in amounts:
        single.observe(amount)
    *counts, total = (sample.value for sample in together.only.samples())
    *of_each, sum_of_each = (sample.value for sample in single.only.samples())
    assert counts == of_each
    assert total == pytest.approx(sum_of_each)
