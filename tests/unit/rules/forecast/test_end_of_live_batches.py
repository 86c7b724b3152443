"""Forecasts of when live batches end, computed from their remaining lines and the rates of models."""

from datetime import timedelta

import pytest

from batchwright.contracts.temporal_payloads.batch import BatchForecast, WindowFit
from batchwright.rules.forecast.end_of_live_batches import (
    Forecaster,
    must_report,
    window_fit,
)
from batchwright.rules.forecast.model_queue import RemainingTime
from batchwright.rules.forecast.work_ahead import UnsettledWork
from batchwright.rules.worker_stats import UpstreamTraffic
from tests.integration.database.rows import after


class Model:
    """A model that answers each line after exactly one second, with ten requests in flight."""

    def __init__(self) -> None:
        self.forecaster = Forecaster()
        self.now = 0.0
        self.settled: dict[str, int] = {}

    def observe(self, *work: UnsettledWork, pending: int = 10) -> dict[str, RemainingTime]:
        requests = 1000 + sum(each.settled for each in work)
        traffic = UpstreamTraffic(
            model="m",
            backend="b",
            requests=requests,
            seconds=requests,
            squared_seconds=requests,
            pending=pending,
        )
        self.forecaster.observe(work, [traffic], self.now)
        self.now += 10
        return self.forecaster.remaining()


def work(
    id: str, settled: int, left: int, *, tenant: str = "t", began: float = 0.0, weight: float = 1.0
) -> UnsettledWork:
    return UnsettledWork(tenant, id, "m", settled, left, began, weight)


def test_a_batch_alone_takes_its_lines_divided_by_its_rate() -> None:
    model = Model()
    model.observe(work("a", 0, 1000))
    found = model.observe(work("a", 100, 900))["a"]
    assert found.p50 == pytest.approx(90, rel=0.03)
    assert 90 < found.p90 < 130
    assert (found.lines_per_second, found.lines_ahead) == (10, 0)


def test_nothing_is_forecast_while_no_rate_is_known() -> None:
    forecaster = Forecaster()
    forecaster.observe([work("a", 0, 1000)], [], 0.0)
    assert forecaster.remaining() == {}


def test_a_model_that_has_answered_before_has_a_forecast_at_once() -> None:
    assert Model().observe(work("a", 0, 1000))["a"].p50 == pytest.approx(100, rel=0.03)


def test_a_second_tenant_doubles_the_time_until_the_shorter_batch_is_done() -> None:
    model = Model()
    found = model.observe(work("a", 0, 500), work("b", 0, 1500, tenant="u"))
    assert found["a"].p50 == pytest.approx(100, rel=0.03)
    assert found["b"].p50 == pytest.approx(200, rel=0.03)
    assert found["a"].lines_ahead == pytest.approx(500, rel=0.03)


def test_weights_divide_the_model() -> None:
    model = Model()
    found = model.observe(work("a", 0, 300, weight=3), work("b", 0, 1000, tenant="u"))
    assert found["a"].p50 == pytest.approx(40, rel=0.05)


def test_small_batches_of_a_tenant_go_first_and_leave_a_fifth_to_large_ones() -> None:
    model = Model()
    found = model.observe(work("a", 0, 100), work("b", 0, 1000), work("c", 0, 1000, tenant="u"))
    assert found["a"].p50 == pytest.approx(25, rel=0.1)


def test_a_priority_has_twice_the_share_of_the_next_lower_one() -> None:
    model = Model()
    urgent = UnsettledWork("t", "a", "m", 0, 400, 0.0, priority=4)
    found = model.observe(urgent, work("b", 0, 1000), work("c", 0, 1000))
    assert found["a"].p50 == pytest.approx(60, rel=0.1)


def test_a_batch_whose_lines_are_more_work_is_known_by_its_progress() -> None:
    """The tenants have equal shares. But the batch of one tenant settles 9 lines per second, and that of the
    other tenant 1.
    """
    model = Model()
    model.observe(work("long", 0, 1000), work("short", 0, 9000, tenant="u"))
    found: dict[str, RemainingTime] = {}
    for step in range(1, 50):
        found = model.observe(
            work("long", 10 * step, 1000 - 10 * step), work("short", 90 * step, 9000 - 90 * step, tenant="u")
        )
    assert found["long"].p50 == pytest.approx(510, rel=0.1)
    assert found["short"].p50 == pytest.approx(510, rel=0.1)


def test_the_rate_follows_a_backend_that_becomes_slower() -> None:
    model = Model()
    for step in range(20):
        model.observe(work("a", 100 * step, 100_000 - 100 * step))
    for step in range(1, 60):
        model.observe(work("a", 1900 + 50 * step, 98_100 - 50 * step))
    found = model.observe(work("a", 4900, 95_100))["a"]
    assert found.p50 == pytest.approx(95_100 / 5, rel=0.05)


def test_time_without_waiting_lines_does_not_lower_the_rate() -> None:
    model = Model()
    model.observe(work("a", 0, 200))
    model.observe(work("a", 100, 100))
    for _ in range(100):
        model.observe(pending=0)
    began = model.now - 10
    found = model.observe(work("b", 100, 900, began=began))["b"]
    assert found.p50 == pytest.approx(90, rel=0.05)


def test_a_batch_that_is_paused_and_resumed_does_not_change_the_rate() -> None:
    model = Model()
    for step in range(10):
        model.observe(work("a", 50 * step, 9000), work("b", 50 * step, 9000))
    for step in range(10, 20):
        model.observe(work("a", 500 + 100 * (step - 10), 9000))
    found = model.observe(work("a", 1500, 1000), work("b", 500, 1000))
    assert found["a"].p50 == pytest.approx(125, rel=0.1)


def test_a_new_control_worker_begins_with_the_mean_rate_of_the_batch() -> None:
    model = Model()
    model.now = 1000.0
    found = model.observe(work("a", 5000, 1000))["a"]
    assert (found.p50, found.lines_per_second) == (pytest.approx(200, rel=0.02), 5)


def test_a_batch_is_done_when_its_slowest_model_is() -> None:
    forecaster = Forecaster()
    lines = [UnsettledWork("t", "a", model, 0, left, 0.0) for model, left in (("m", 100), ("n", 1000))]
    traffic = [
        UpstreamTraffic(model=model, backend="b", requests=100, seconds=100, squared_seconds=100, pending=10)
        for model in ("m", "n")
    ]
    forecaster.observe(lines, traffic, 0.0)
    assert forecaster.remaining()["a"].p50 == pytest.approx(100, rel=0.03)


def test_a_batch_with_a_model_of_unknown_rate_has_no_forecast() -> None:
    forecaster = Forecaster()
    lines = [UnsettledWork("t", "a", model, 0, 1000, 0.0) for model in ("m", "new")]
    known = UpstreamTraffic(model="m", backend="b", requests=9, seconds=9, squared_seconds=9, pending=10)
    forecaster.observe(lines, [known], 0.0)
    assert forecaster.remaining() == {}


@pytest.mark.parametrize(
    ("seconds_left", "fit"), [(200, WindowFit.FITS), (110, WindowFit.AT_RISK), (90, WindowFit.LATE)]
)
def test_a_batch_fits_its_window_if_its_end_at_90_percent_does(seconds_left: float, fit: WindowFit) -> None:
    assert window_fit(RemainingTime(100, 120, 10, 0), seconds_left) is fit


def forecast(at: float, p50: float, window: WindowFit = WindowFit.FITS) -> BatchForecast:
    return BatchForecast(
        made_at=after(at), lines_per_second=1, lines_ahead=0, p50_seconds=p50, p90_seconds=p50, window=window
    )


@pytest.mark.parametrize(
    ("later", "news"),
    [
        (forecast(100, 900), False),  # the same end
        (forecast(100, 1100), True),
        (forecast(100, 900, WindowFit.LATE), True),
        (forecast(30, 2000, WindowFit.LATE), False),  # too soon
    ],
)
def test_a_forecast_is_reported_again_if_the_end_has_moved(later: BatchForecast, news: bool) -> None:
    assert must_report(forecast(0, 1000), later, timedelta(hours=1)) is news


def test_reports_in_a_long_window_are_further_apart() -> None:
    assert not must_report(forecast(0, 1000), forecast(600, 5000), timedelta(days=2))
    assert must_report(forecast(0, 1000), forecast(900, 5000), timedelta(days=2))
