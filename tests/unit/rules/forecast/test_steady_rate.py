"""Rate of a model, measured only while nothing but the model slows down its lines."""

import pytest

from batchwright.rules.forecast.steady_rate import SteadyRate


def measured(seconds: int) -> SteadyRate:
    """Return a rate of 20 lines per second with 64 requests in flight, measured for `seconds`."""
    rate = SteadyRate()
    for _ in range(seconds // 15):
        rate.record(300, 64, 15, limited=False)
    return rate


def test_the_rate_is_known_after_a_minute() -> None:
    assert measured(45).per_second(1.0) is None
    assert measured(60).per_second(1.0) == pytest.approx(20)


def test_long_answers_take_longer_to_measure() -> None:
    assert measured(60).per_second(30.0) is None
    assert measured(90).per_second(30.0) == pytest.approx(20)


@pytest.mark.parametrize(
    ("lines", "pending", "limited"),
    [(0, 64, False), (300, 31, False), (300, 64, True)],
    ids=["no line settles", "few requests are in flight", "only tenants with limits have lines"],
)
def test_a_time_that_says_nothing_about_a_new_batch_begins_the_measurement_again(
    lines: int, pending: int, limited: bool
) -> None:
    rate = measured(120)
    rate.record(lines, pending, 15, limited=limited)
    assert rate.per_second(1.0) is None


def test_the_rate_follows_a_model_that_becomes_slower() -> None:
    rate = measured(600)
    for _ in range(40):
        rate.record(150, 64, 15, limited=False)
    assert rate.per_second(1.0) == pytest.approx(10, rel=0.02)


def test_fewer_requests_in_flight_count_as_usual_after_some_hours() -> None:
    rate = measured(60)
    for _ in range(4 * 3600 // 15):
        rate.record(60, 8, 15, limited=False)
    assert rate.per_second(1.0) == pytest.approx(4)
