"""Forecasts of batches before they begin."""

import pytest

from batchwright.contracts.temporal_payloads.batch import StartFit
from batchwright.rules.forecast.end_of_new_batch import NewBatchForecast, forecast_new_batch
from batchwright.rules.forecast.model_queue import ModelSpeed
from batchwright.rules.forecast.work_ahead import UnsettledWork


def speed(rate: float = 10.0, variation: float = 0.0) -> ModelSpeed:
    return ModelSpeed(lines_per_second=rate, lines_measured=1000, pending=rate, mean=1.0, variation=variation)


def work(id: str, left: int, *, tenant: str = "t", model: str = "m", priority: int = 3) -> UnsettledWork:
    return UnsettledWork(tenant, id, model, 0, left, 0.0, priority=priority)


def expected(new: UnsettledWork, *queue: UnsettledWork, variation: float = 0.0) -> NewBatchForecast:
    found = forecast_new_batch([new], queue, {"m": speed(variation=variation)})
    assert found is not None
    return found


def test_a_batch_alone_takes_its_lines_divided_by_the_rate() -> None:
    found = expected(work("new", 1000))
    assert found.p50 == pytest.approx(100, rel=0.02)
    assert found.soonest < found.p50 < found.p90
    assert found.lines_ahead == 0


def test_lines_of_another_tenant_that_are_there_take_their_share() -> None:
    found = expected(work("new", 1000), work("a", 2000, tenant="u"))
    assert found.p50 == pytest.approx(200, rel=0.02)
    assert found.lines_ahead == pytest.approx(1000, rel=0.02)


def test_a_smaller_batch_of_the_priority_goes_first_but_the_soonest_end_does_not_count_on_that() -> None:
    alone, behind = expected(work("new", 1000)), expected(work("new", 1000), work("a", 900))
    assert behind.p50 == pytest.approx(190, rel=0.02)
    assert behind.soonest == pytest.approx(alone.soonest / 0.8, rel=0.05)


def test_the_soonest_end_is_that_of_lines_that_are_a_quarter_of_the_usual_work() -> None:
    assert expected(work("new", 4000)).soonest == pytest.approx(80, rel=0.1)


def test_lines_of_other_models_do_not_count() -> None:
    assert expected(work("new", 1000), work("a", 9000, model="other")) == expected(work("new", 1000))


def test_the_slowest_model_decides() -> None:
    batch = [work("new", 1000), work("new", 1000, model="slow")]
    found = forecast_new_batch(batch, [], {"m": speed(), "slow": speed(2.0)})
    assert found == forecast_new_batch(batch[1:], [], {"slow": speed(2.0)})


def test_without_the_speed_of_one_model_there_is_no_forecast() -> None:
    batch = [work("new", 1000), work("new", 10, model="unknown")]
    assert forecast_new_batch(batch, [], {"m": speed()}) is None
    assert forecast_new_batch([], [], {"m": speed()}) is None


def test_the_more_answers_differ_the_less_is_certain() -> None:
    even, uneven = expected(work("new", 1000)), expected(work("new", 1000), variation=3.0)
    assert uneven.p90 - uneven.p50 > 2 * (even.p90 - even.p50)


@pytest.mark.parametrize(
    ("seconds_left", "fit"),
    [
        (200, StartFit.FITS),
        (199, StartFit.AT_RISK),
        (50, StartFit.AT_RISK),
        (49, StartFit.CANNOT),
        (-5, StartFit.CANNOT),
    ],
)
def test_the_window_is_compared_with_p90_and_with_the_soonest_end(seconds_left: float, fit: StartFit) -> None:
    assert NewBatchForecast(p50=100, p90=200, soonest=50, lines_ahead=0).fit(seconds_left) is fit
