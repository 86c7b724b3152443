"""Shares and caps of tenants, on virtual time. A tenant's share is measured by the time of its requests in
flight.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from batchwright.inference.limits.concurrency_limiter import PermitRequest
from batchwright.inference.limits.tenant_and_model_limits import TenantSettings
from batchwright.rules.dispatch.batch_ranking import BatchRanks
from tests.fakes.permit_traffic import PermitTraffic


def fixed(seconds: float) -> Callable[[], float]:
    return lambda: seconds


def lognormal(median: float, seed: int) -> Callable[[], float]:
    random = Random(seed)
    return lambda: random.lognormvariate(math.log(median), 1.0)


def one_in_ten_takes_a_minute(seed: int) -> Callable[[], float]:
    random = Random(seed)
    return lambda: 60.0 if random.random() < 0.1 else 1.0


class Changing(TenantSettings):
    """Weights and caps that a test changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: dict[str, float] = {}
        self.caps: dict[str, int] = {}  # of tenants and keys
        self.weights = self.changed
        self.max_in_flight = self.key_max_in_flight = self.caps

    def ranks(self, model: str) -> BatchRanks:
        return BatchRanks()


@pytest.mark.parametrize("in_flight", [2, 4, 64])
@pytest.mark.parametrize(
    ("long", "short"),
    [
        (fixed(1.0), fixed(1.0)),
        (fixed(4.0), fixed(0.2)),
        (lognormal(3.0, 1), lognormal(3.0, 2)),
        (lognormal(4.0, 1), lognormal(0.2, 2)),
    ],
    ids=["equal", "0.2 and 4 s", "lognormal", "lognormal, 0.2 and 4 s"],
)
def test_tenants_of_equal_weight_have_equal_work_in_any_minute(
    long: Callable[[], float], short: Callable[[], float], in_flight: int
) -> None:
    traffic = PermitTraffic(in_flight)
    traffic.send("long", long)
    traffic.send("short", short)
    traffic.run(300)
    assert traffic.least_even_minute(["long", "short"], 0, 300) >= 0.98


def test_many_tenants_of_different_lengths_have_equal_work_in_any_minute() -> None:
    traffic = PermitTraffic(20)
    medians = {"a": 0.1, "b": 0.2, "c": 0.5, "d": 1.0, "e": 2.0, "f": 4.0, "g": 8.0}
    for seed, (tenant, median) in enumerate(medians.items()):
        traffic.send(tenant, lognormal(median, seed))
    traffic.run(300)
    assert traffic.least_even_minute(list(medians), 0, 300) >= 0.98


def test_more_tenants_than_permits_have_equal_work_in_any_minute() -> None:
    traffic, tenants = PermitTraffic(4), [f"t{number}" for number in range(12)]
    for tenant in tenants:
        traffic.send(tenant, fixed(0.5 if tenant == "t0" else 0.1))
    traffic.run(300)
    assert traffic.least_even_minute(tenants, 0, 300) >= 0.98


@pytest.mark.parametrize(
    "long", [fixed(300.0), one_in_ten_takes_a_minute(1)], ids=["5 minutes", "one in ten takes a minute"]
)
def test_requests_that_run_for_minutes_take_no_more_than_the_share_of_their_tenant(
    long: Callable[[], float],
) -> None:
    traffic = PermitTraffic(64)
    traffic.send("short", fixed(1.0))
    traffic.send("long", long)
    traffic.run(700)
    assert traffic.least_even_minute(["long", "short"], 0, 700) >= 0.98


@pytest.mark.parametrize("in_flight", [3, 64])
@pytest.mark.parametrize(("heavy", "light"), [(4.0, 0.2), (0.2, 4.0), (1.0, 1.0)])
def test_work_follows_the_weights(heavy: float, light: float, in_flight: int) -> None:
    traffic = PermitTraffic(in_flight)
    traffic.send("heavy", fixed(heavy), weight=3.0)
    traffic.send("light", fixed(light), weight=1.0)
    traffic.run(300)
    for start, end in pairwise(range(60, 301, 60)):
        part = traffic.work("heavy", start, end) / (in_flight * (end - start))
        assert part == pytest.approx(0.75, abs=0.04)


def test_a_changed_weight_reaches_tenants_with_requests_in_flight_within_5_seconds() -> None:
    shares = Changing()
    traffic = PermitTraffic(64, shares)
    traffic.send("a", fixed(1.0))
    traffic.send("b", fixed(1.0))
    traffic.run(100)
    shares.changed["a"] = 3.0
    traffic.run(160)
    assert traffic.work("a", 105, 160) / traffic.work("b", 105, 160) == pytest.approx(3.0, abs=0.2)
    shares.changed["a"] = 1 / 3
    traffic.run(220)
    assert traffic.work("b", 165, 220) / traffic.work("a", 165, 220) == pytest.approx(3.0, abs=0.2)


@pytest.mark.parametrize("in_flight", [1, 2, 4])
@pytest.mark.parametrize("seconds", [1.0, 60.0])
def test_a_weight_that_is_restored_leaves_nothing_behind(seconds: float, in_flight: int) -> None:
    shares = Changing()
    traffic = PermitTraffic(in_flight, shares)
    traffic.tick(0.25)
    traffic.send("a", fixed(seconds))
    traffic.send("b", fixed(seconds))
    traffic.at(10.0, lambda: shares.changed.update(a=0.001))
    traffic.at(200.0, lambda: shares.changed.update(a=1.0))
    traffic.run(1400)
    assert traffic.work("a", 400, 1400) == pytest.approx(traffic.work("b", 400, 1400), rel=0.1)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_an_impossible_weight_stops_no_tenant(weight: float) -> None:
    shares = Changing()
    shares.changed["odd"] = weight
    traffic = PermitTraffic(8, shares)
    traffic.send("odd", fixed(1.0))
    traffic.send("usual", fixed(1.0))
    traffic.run(60)
    assert traffic.work("odd", 0, 60) > 0
    assert traffic.work("usual", 0, 60) > 0


@pytest.mark.parametrize("seconds", [0.2, 4.0])
def test_a_newcomer_gets_the_next_free_permit(seconds: float) -> None:
    traffic, random = PermitTraffic(64), Random(1)
    for tenant in ("a", "b", "c"):
        traffic.send(tenant, lambda: seconds * random.uniform(0.5, 1.5))
    traffic.send("new", fixed(seconds), since=90.05)
    traffic.run(150)
    after = [(tenant, at) for tenant, at in traffic.grants if at >= 90.05]
    assert after[0][0] == "new"
    assert after[0][1] - 90.05 < 1.0
    assert traffic.least_even_minute(["a", "b", "c", "new"], 90, 150) >= 0.98


def test_a_tenant_that_sent_less_than_its_share_gets_no_credit_for_it() -> None:
    traffic = PermitTraffic(16)
    for tenant in ("a", "b"):
        traffic.send(tenant, fixed(1.0))

    def one_at_a_time() -> None:
        traffic.send("modest", fixed(0.5), slices=1, since=traffic.now, until=traffic.now)
        if traffic.now < 300:
            traffic.at(traffic.now + 1.0, one_at_a_time)

    one_at_a_time()
    traffic.send("modest", fixed(1.0), since=301)
    traffic.run(400)
    assert traffic.work("modest", 0, 300) < 200
    assert traffic.least_even_minute(["a", "b", "modest"], 301, 400) >= 0.98


def test_a_tenant_that_used_idle_permits_pays_nothing_for_it_later() -> None:
    traffic = PermitTraffic(16)
    traffic.send("first", lognormal(2.0, 1))
    traffic.send("second", fixed(0.5), since=200)
    traffic.run(300)
    assert traffic.least_even_minute(["first", "second"], 202, 300) >= 0.98


def test_a_tenant_that_returns_after_a_pause_has_neither_credit_nor_debt() -> None:
    traffic = PermitTraffic(8)
    traffic.send("stays", fixed(0.5))
    traffic.send("returns", fixed(20.0), until=40)
    traffic.send("returns", fixed(0.5), since=100)
    traffic.run(200)
    assert traffic.least_even_minute(["stays", "returns"], 101, 200) >= 0.98


@pytest.mark.parametrize("pause", [1.0, 6.0, 600.0])
def test_the_last_tenant_of_an_idle_model_returns_after_a_pause(pause: float) -> None:
    traffic = PermitTraffic(1)
    traffic.send("a", fixed(1.0), slices=1, until=0.5)
    back = 2.0 + pause
    traffic.send("a", fixed(1.0), since=back)
    traffic.send("b", fixed(1.0), since=back)
    traffic.run(back + 120)
    assert traffic.least_even_minute(["a", "b"], back, back + 120) >= 0.98


def test_a_tenant_that_waits_between_its_requests_does_not_lose_its_place_to_longer_ones() -> None:
    """Each slice has one request at a time, and requests the next permit a moment after the last request has
    ended.
    """
    traffic = PermitTraffic(1)

    def send(tenant: str, seconds: float) -> None:
        traffic.send(tenant, fixed(seconds), slices=1, since=traffic.now, until=traffic.now)
        traffic.at(traffic.now + seconds + 0.001, lambda: send(tenant, seconds))

    send("long", 4.0)
    for _ in range(3):
        send("short", 0.2)
    traffic.run(300)
    assert traffic.work("short", 60, 300) > 0.4 * 240


def test_a_cap_bounds_the_requests_of_a_tenant_and_blocks_no_other() -> None:
    shares = Changing()
    shares.caps["capped"] = 3
    traffic = PermitTraffic(16, shares)
    traffic.send("capped", fixed(1.0))
    traffic.send("free", lognormal(1.0, 1))
    for second in range(1, 60):
        traffic.run(second + 0.5)
        assert (traffic.in_flight("capped"), traffic.in_flight("free")) == (3, 13)
        assert not traffic.limiter.others_wait("m", "free")


def test_a_cap_counts_the_requests_of_all_models() -> None:
    shares = Changing()
    shares.caps["capped"] = 4
    traffic = PermitTraffic(16, shares)
    for model in ("m", "n"):
        traffic.send("capped", lognormal(1.0, len(model)), model=model)
    traffic.run(100)
    assert traffic.in_flight("capped") == 4
    held = [traffic.limiter.used_by(model) for model in ("m", "n")]
    assert min(held) >= 1


def test_a_changed_cap_takes_effect_on_running_batches() -> None:
    shares = Changing()
    traffic = PermitTraffic(16, shares)
    traffic.tick(0.25)
    traffic.send("t", fixed(1.0))
    for cap, expected in ((16, 16), (2, 2), (0, 0), (5, 5), (100, 16)):
        shares.caps["t"] = cap
        traffic.run(traffic.now + 2)
        assert traffic.in_flight("t") == expected
    shares.caps["t"] = 1
    traffic.run(traffic.now + 2)
    del shares.caps["t"]
    traffic.run(traffic.now + 2)
    assert traffic.in_flight("t") == 16


def test_a_tenant_whose_cap_is_lifted_has_no_credit() -> None:
    shares = Changing()
    shares.caps["t"] = 1
    traffic = PermitTraffic(16, shares)
    traffic.tick(0.25)
    traffic.send("t", fixed(1.0))
    traffic.send("other", fixed(1.0))
    traffic.run(300)
    shares.caps.clear()
    traffic.run(400)
    assert traffic.least_even_minute(["t", "other"], 302, 400) >= 0.98


def test_a_key_at_its_cap_holds_up_no_other_key_of_its_tenant() -> None:
    shares = Changing()
    shares.caps["capped"] = 2
    traffic = PermitTraffic(16, shares)
    traffic.send("t", fixed(1.0), key_id="capped")
    traffic.send("t", fixed(1.0), key_id="free")
    traffic.send("u", fixed(1.0))
    traffic.run(30.5)
    assert (traffic.in_flight("t"), traffic.in_flight("u")) == (8, 8)
    alone = PermitTraffic(16, shares)
    alone.send("t", fixed(1.0), key_id="capped")
    alone.run(10.5)
    assert alone.in_flight("t") == 2
    alone.send("t", fixed(1.0), key_id="free", since=11)
    alone.run(12.5)
    assert alone.in_flight("t") == 16


def test_a_capped_request_can_be_cancelled() -> None:
    shares = Changing()
    shares.caps["t"] = 0
    traffic = PermitTraffic(16, shares)
    request = PermitRequest("m", "t", 1.0, "batch", 0, lambda permit: None)
    traffic.limiter.enqueue(request)
    traffic.limiter.cancel(request)
    shares.caps.clear()
    traffic.limiter.refresh("m")
    assert traffic.limiter.used == 0
    with pytest.raises(KeyError):
        traffic.limiter.cancel(request)
