"""Limits of backends beneath those of models: shared, counted, learned from answers."""

from collections.abc import Collection

import pytest

from batchwright.inference.adaptive import BackendLimits, Policy, signal_of
from batchwright.inference.limits import Permit, Permits
from batchwright.inference.outcomes import Outcome
from batchwright.rules import retries
from batchwright.rules.load import Signal
from batchwright.rules.retries import judge
from batchwright.telemetry.metrics import Metrics
from tests.fakes.waiters import Asked, taken

A, B = "http://a:8000", "http://b:8000/path"
REFUSED = Outcome(judge(429), message="no")


class House:
    """Two backends, models as `backends` says, and a clock."""

    def __init__(self, backends: dict[str, Collection[str]], *, ceiling: int = 10, adaptive: bool = True):
        self.now, self.metrics = 100.0, Metrics()
        policy = Policy(adaptive=adaptive, ceiling=ceiling)
        self.limits = BackendLimits(policy, lambda model: backends[model], self.metrics, lambda: self.now)
        self.permits = Permits(total=1000, per_model=100, backends=self.limits)

    def take(self, model: str, most: int = 1000) -> list[Permit]:
        held: list[Permit] = []
        while len(held) < most and (permit := taken(self.permits, model)):
            held.append(permit)
        return held

    def counted(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"batchwright_{name}", labels)


async def test_a_backends_limit_holds_for_all_its_models_together() -> None:
    house = House({"m": [A], "n": [A]})
    first = house.take("m", 7)
    for permit in first:
        permit.place(A)
    assert len(house.take("n")) == 3


async def test_permits_that_are_not_placed_yet_count() -> None:
    house = House({"m": [A], "n": [A]})
    assert (len(house.take("m", 6)), len(house.take("n"))) == (6, 4)


async def test_models_of_a_backend_share_what_it_takes() -> None:
    house = House({"m": [A], "n": [A]})
    held = house.take("m")
    for permit in held:
        permit.place(A)
    waiting = [Asked(house.permits, model) for model in "mn" * 10]
    for permit in held:
        permit.release()
    granted = [waiter.permit.model for waiter in waiting if waiter.done]
    assert (granted.count("m"), granted.count("n")) == (5, 5)


async def test_a_model_of_two_backends_gets_what_both_take() -> None:
    house = House({"m": [A, B]})
    for number, permit in enumerate(house.take("m")):
        permit.place(A if number % 2 else B)
    assert (house.limits.in_flight(A), house.limits.in_flight(B)) == (10, 10)
    assert house.take("m") == []
    assert house.limits.is_full(A)


async def test_a_request_that_goes_elsewhere_counts_there_alone() -> None:
    house = House({"m": [A, B]})
    permit = house.take("m", 1)[0]
    permit.place(A)
    permit.place(B)
    assert (house.limits.in_flight(A), house.limits.in_flight(B)) == (0, 1)
    permit.release()
    permit.release()
    assert (house.limits.in_flight(A), house.limits.in_flight(B)) == (0, 0)


async def test_a_refusal_lowers_the_limit_and_what_waits_stays_waiting() -> None:
    house = House({"m": [A]})
    held = house.take("m")
    for permit in held:
        permit.place(A)
    waiter = Asked(house.permits, "m")
    for permit in held[:3]:
        permit.tell(REFUSED)
        permit.release()
    assert (house.limits.limit_of(A), waiter.done) == (7, False)
    held[3].release()
    assert waiter.done


async def test_a_limit_that_is_not_adaptive_stays() -> None:
    house = House({"m": [A]}, adaptive=False)
    permit = house.take("m", 1)[0]
    permit.place(A)
    permit.tell(REFUSED)
    assert house.limits.limit_of(A) == 10


async def test_limits_and_what_is_in_flight_are_shown_by_its_url_as_its_requests_are() -> None:
    house = House({"m": [B]})
    permit = house.take("m", 1)[0]
    permit.place(B)
    label = {"backend": B}
    assert house.counted("backend_inflight_requests", **label) == 1
    assert house.counted("backend_max_inflight_concurrency", **label) == 10
    permit.tell(REFUSED)
    assert house.counted("backend_limit_changes_total", cause="refused", **label) == 1
    assert house.counted("backend_max_inflight_concurrency", **label) == house.limits.limit_of(B) == 1


@pytest.mark.parametrize(
    ("outcome", "signal"),
    [
        (Outcome(retries.SUCCESS, 200), Signal.ANSWERED),
        (Outcome(judge(429)), Signal.REFUSED),
        (Outcome(judge(503)), Signal.REFUSED),
        (Outcome(retries.NO_ANSWER_IN_TIME), Signal.TIMED_OUT),
        (Outcome(retries.NOT_SENT), Signal.NOTHING),
        (Outcome(judge(400)), Signal.NOTHING),
        (Outcome(judge(500)), Signal.NOTHING),
        (Outcome(judge(401)), Signal.NOTHING),
    ],
    ids=lambda value: value.value if isinstance(value, Signal) else value.verdict.category,
)
def test_only_what_tells_of_load_is_a_signal(outcome: Outcome, signal: Signal) -> None:
    assert signal_of(outcome) is signal
