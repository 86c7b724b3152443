"""Rates per minute of tenants and models, on virtual time. A rate slows down only its own tenant or model."""

from collections import defaultdict
from collections.abc import Callable
from random import Random

import pytest

from batchwright.inference.limits.tenant_and_model_limits import (
    NO_RATES,
    FleetRate,
    Limit,
    Rates,
    TenantAndModelLimits,
    TenantSettings,
)
from tests.fakes.permit_traffic import PermitTraffic


class Changing(TenantSettings):
    """Rates and caps of tenants that a test changes."""

    def __init__(self, **rates: Rates) -> None:
        super().__init__()
        self.of_tenants = rates
        self.caps: dict[str, int] = {}
        self.rates, self.max_in_flight = self.of_tenants, self.caps


class Waits:
    """The number of seconds for which lines waited, by limit, model and tenant."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[Limit, str, str], float] = defaultdict(float)

    def __call__(self, limit: Limit, model: str, tenant: str, seconds: float) -> None:
        self.seconds[limit, model, tenant] += seconds


def requests(per_minute: int, parts: int = 1) -> Rates:
    return Rates(requests=FleetRate(per_minute, per_minute / parts))


def tokens(per_minute: int) -> Rates:
    return Rates(tokens=FleetRate(per_minute, per_minute))


def second() -> float:
    return 1.0


def about_a_second() -> Callable[[], float]:
    random = Random(1)
    return lambda: random.uniform(0.5, 1.5)


@pytest.mark.parametrize("rate", [1, 30, 300])
def test_a_rate_of_a_tenant_holds_in_any_minute_and_does_not_slow_down_another_tenant(rate: int) -> None:
    traffic = PermitTraffic(16, Changing(blue=requests(rate)))
    traffic.tick(0.25)
    traffic.send("blue", about_a_second())
    traffic.send("red", about_a_second())
    traffic.run(300)
    assert traffic.most_in_a_minute("blue") <= rate
    assert sum(name == "blue" for name, _ in traffic.grants) >= 0.95 * 5 * rate
    assert traffic.work("red", 10, 300) == pytest.approx(290 * (16 - rate / 60), rel=0.03)


def test_a_rate_of_a_model_holds_for_all_tenants_together_and_they_share_it() -> None:
    traffic = PermitTraffic(16)
    traffic.limits.model_rates = {"m": requests(120)}
    traffic.tick(0.25, "m", "other")
    traffic.send("blue", second)
    traffic.send("red", second)
    traffic.send("green", second, model="other")
    traffic.run(300)
    of_others = [name for name, _ in traffic.grants if name != "green"]
    assert traffic.work("green", 10, 300) == pytest.approx(290 * 16)
    assert 0.97 * 600 <= len(of_others) <= 600
    assert of_others.count("blue") == pytest.approx(300, rel=0.05)


def test_a_rate_of_tokens_counts_what_responses_used() -> None:
    traffic = PermitTraffic(16, Changing(blue=tokens(60_000)))
    traffic.tick(0.25)
    traffic.send("blue", second, tokens=2_000)
    traffic.run(1200)
    used = sum(number for _, at, number in traffic.tokens if at >= 60)
    assert used == pytest.approx(60_000 * 19, rel=0.03)
    for start in range(60, 1140, 7):
        in_minute = sum(number for _, at, number in traffic.tokens if start <= at < start + 60)
        assert in_minute <= 60_000 + 2_000


def test_estimates_of_tokens_that_were_too_high_are_given_back() -> None:
    traffic = PermitTraffic(16, Changing(blue=tokens(6_000)))
    traffic.tick(0.25)
    traffic.send("blue", second, tokens=10)
    traffic.run(120)
    assert sum(number for _, at, number in traffic.tokens if at >= 60) == pytest.approx(6_000, rel=0.05)


def test_a_request_of_more_tokens_than_the_rate_is_sent_and_the_next_ones_wait_for_it() -> None:
    traffic = PermitTraffic(16, Changing(blue=tokens(1_000)))
    traffic.tick(0.25)
    traffic.send("blue", second, tokens=5_000, slices=1)
    traffic.run(1800)
    assert 6 <= len(traffic.grants) <= 10


def test_a_response_to_a_request_from_before_the_rate_of_its_model_does_not_change_that_rate() -> None:
    limits = TenantAndModelLimits(Changing(blue=tokens(1_000)))
    charge = limits.charge("m", "blue", 400, 0.0)
    assert charge is not None
    limits.model_rates = {"m": tokens(1_000)}
    assert limits.model_limit("m", 1.0) is None
    limits.correct(charge, 1_000_000)
    assert limits.model_limit("m", 2.0) is None


def test_a_changed_rate_holds_at_once() -> None:
    shares = Changing(blue=requests(60))
    traffic = PermitTraffic(16, shares)
    traffic.tick(0.25)
    traffic.send("blue", second)
    traffic.run(60)
    shares.of_tenants["blue"] = requests(600)
    traffic.run(120)
    shares.of_tenants["blue"] = requests(6)
    traffic.run(180)
    del shares.of_tenants["blue"]
    traffic.run(240)
    by_minute = [sum(start < at <= start + 60 for _, at in traffic.grants) for start in (0, 60, 120, 180)]
    assert by_minute[0] <= 60
    assert 560 <= by_minute[1] <= 600
    assert by_minute[2] <= 6
    assert by_minute[3] > 900


def test_the_limit_that_was_reached_is_named_and_its_waits_are_recorded() -> None:
    shares, waits = Changing(blue=requests(60)), Waits()
    shares.caps["red"] = 1
    traffic = PermitTraffic(16, shares, waits)
    traffic.limits.model_rates = {"slow": tokens(6_000), "free": NO_RATES}
    traffic.tick(0.25, "m", "slow", "free")
    traffic.send("blue", second)
    traffic.send("red", second)
    traffic.send("green", second, model="slow", tokens=1_000)
    traffic.send("white", second, model="free")
    traffic.run(65.1)
    reached = {
        tenant: traffic.limiter.limit_reached(model, tenant, "")
        for tenant, model in (("blue", "m"), ("red", "m"), ("green", "slow"), ("white", "free"))
    }
    assert reached == {
        "blue": Limit.TENANT_REQUESTS,
        "red": Limit.TENANT_IN_FLIGHT,
        "green": Limit.MODEL_TOKENS,
        "white": None,
    }
    assert set(waits.seconds) == {
        (Limit.TENANT_REQUESTS, "m", "blue"),
        (Limit.TENANT_IN_FLIGHT, "m", "red"),
        (Limit.MODEL_TOKENS, "slow", ""),
    }
    assert all(40 < seconds < 66 for seconds in waits.seconds.values())
    limits = traffic.limits
    assert limits.reason(Limit.TENANT_REQUESTS, "m", "blue") == (
        "limited by the tenant's rate of 60 requests per minute"
    )
    assert limits.reason(Limit.MODEL_TOKENS, "slow", "green") == (
        "limited by the model's rate of 6,000 tokens per minute"
    )


def test_workers_that_divide_a_rate_send_no_more_than_it_together() -> None:
    workers = [PermitTraffic(16, Changing(blue=requests(90, parts=3))) for _ in range(3)]
    for worker in workers:
        worker.tick(0.25)
        worker.send("blue", second)
        worker.run(600)
    times = sorted(at for worker in workers for _, at in worker.grants)
    assert all(sum(start <= at < start + 60 for at in times) <= 90 for start in times)
    assert len(times) >= 0.97 * 900


def test_a_tenant_at_its_rate_sends_nothing_through_other_models() -> None:
    traffic = PermitTraffic(16, Changing(blue=requests(60)))
    traffic.tick(0.25, "a", "b")
    traffic.send("blue", second, model="a")
    traffic.send("blue", second, model="b")
    traffic.run(180)
    assert traffic.most_in_a_minute("blue") <= 60
