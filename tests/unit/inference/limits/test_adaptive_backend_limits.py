"""Adaptive limits on requests in flight of backends, which apply in addition to the limits of models.

The models of a backend share its limit. The limit adapts to the outcomes of requests.
"""

from collections.abc import Collection

import pytest

from batchwright.inference.limits.adaptive_backend_limits import (
    AdaptiveLimitPolicy,
    BackendLimits,
    load_signal,
)
from batchwright.inference.limits.concurrency_limiter import ConcurrencyLimiter, Permit
from batchwright.inference.request_outcome import Outcome
from batchwright.rules.dispatch import retry_policy
from batchwright.rules.dispatch.retry_policy import classify
from batchwright.rules.limits.adaptive_limit import AdaptiveLimit
from batchwright.rules.limits.backend_load import LoadSignal
from batchwright.telemetry.metrics import Metrics
from tests.fakes.permit_requests import PermitWaiter, taken

A, B = "http://a:8000", "http://b:8000/path"
REFUSED = Outcome(classify(429), message="no")
BUSY = Outcome(retry_policy.BUSY, 503)


class BackendLimitFixture:
    """A fixture of adaptive limits of backends, with a clock. `backends` maps each model to its backends."""

    def __init__(self, backends: dict[str, Collection[str]], *, ceiling: int = 10, adaptive: bool = True):
        self.now, self.metrics = 100.0, Metrics()
        policy = AdaptiveLimitPolicy(adaptive=adaptive, ceiling=ceiling)
        self.limits = BackendLimits(policy, lambda model: backends[model], self.metrics, lambda: self.now)
        self.permits = ConcurrencyLimiter(total=1000, model_limit=lambda _: 100, backends=self.limits)

    def take(self, model: str, most: int = 1000) -> list[Permit]:
        held: list[Permit] = []
        while len(held) < most and (permit := taken(self.permits, model)):
            held.append(permit)
        return held

    def take_and_place(self, model: str, backend: str) -> list[Permit]:
        held = self.take(model)
        for permit in held:
            permit.place(backend)
        return held

    def counted(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"batchwright_{name}", labels)

    def in_flight(self, url: str) -> float | None:
        return self.counted("backend_inflight_requests", backend=url)


async def test_all_models_of_a_backend_share_its_limit() -> None:
    limits = BackendLimitFixture({"m": [A], "n": [A]})
    first = limits.take("m", 7)
    for permit in first:
        permit.place(A)
    assert len(limits.take("n")) == 3


async def test_permits_that_are_not_placed_yet_count() -> None:
    limits = BackendLimitFixture({"m": [A], "n": [A]})
    assert (len(limits.take("m", 6)), len(limits.take("n"))) == (6, 4)


async def test_models_of_a_backend_share_its_limit() -> None:
    limits = BackendLimitFixture({"m": [A], "n": [A]})
    held = limits.take("m")
    for permit in held:
        permit.place(A)
    waiting = [PermitWaiter(limits.permits, model) for model in "mn" * 10]
    for permit in held:
        permit.release()
    granted = [waiter.permit.of.name for waiter in waiting if waiter.done]
    assert (granted.count("m"), granted.count("n")) == (5, 5)


async def test_a_model_whose_requests_hang_does_not_stop_the_other_models_of_its_backend() -> None:
    limits = BackendLimitFixture({"m": [A], "n": [A]})
    for permit in limits.take("m"):
        permit.place(A)
    waiters = [PermitWaiter(limits.permits, "n") for _ in range(3)]
    for seconds in (0.0, 9.9):
        limits.now = 100.0 + seconds
        limits.permits.refresh("n")
        assert not any(waiter.done for waiter in waiters)
    limits.now = 110.0
    limits.permits.refresh("n")
    for number, waiter in enumerate(waiters):
        assert [each.done for each in waiters] == [each <= number for each in range(3)]  # one in flight
        waiter.permit.place(A)
        waiter.permit.release()


async def test_a_starved_model_does_not_exceed_the_fleets_limit_of_its_backend() -> None:
    limits = BackendLimitFixture({"m": [A], "n": [A]})
    limits.limits.set_shares({A: 2})
    for permit in limits.take("m"):
        permit.place(A)
    waiter = PermitWaiter(limits.permits, "n")
    limits.permits.refresh("n")
    limits.now += 60.0
    limits.permits.refresh("n")
    assert not waiter.done


async def test_a_model_with_two_backends_uses_both_limits() -> None:
    limits = BackendLimitFixture({"m": [A, B]})
    for number, permit in enumerate(limits.take("m")):
        permit.place(A if number % 2 else B)
    assert (limits.in_flight(A), limits.in_flight(B)) == (10, 10)
    assert limits.take("m") == []
    assert limits.limits.is_full(A)


async def test_a_request_sent_to_another_backend_counts_only_there() -> None:
    limits = BackendLimitFixture({"m": [A, B]})
    permit = limits.take("m", 1)[0]
    permit.place(A)
    permit.place(B)
    assert (limits.in_flight(A), limits.in_flight(B)) == (0, 1)
    permit.release()
    permit.release()
    assert (limits.in_flight(A), limits.in_flight(B)) == (0, 0)


async def test_a_refusal_lowers_the_limit_and_queued_requests_keep_waiting() -> None:
    limits = BackendLimitFixture({"m": [A]})
    held = limits.take("m")
    for permit in held:
        permit.place(A)
    waiter = PermitWaiter(limits.permits, "m")
    for permit in held[:3]:
        permit.record_outcome(REFUSED)
        permit.release()
    assert (limits.limits.limit_of(A), waiter.done) == (7, False)
    held[3].release()
    assert waiter.done


async def test_a_limit_learns_of_requests_that_end_without_an_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aborted: list[float] = []

    def on_aborted(_: AdaptiveLimit, sent_at: float, now: float) -> None:
        aborted.append(sent_at)

    monkeypatch.setattr(AdaptiveLimit, "on_aborted", on_aborted)
    limits = BackendLimitFixture({"m": [A]})
    for permit in (held := limits.take("m", 3)):
        permit.place(A)
    held[0].record_outcome(REFUSED)
    for permit in held:
        permit.release()
    assert aborted == [100.0, 100.0]


async def test_a_share_of_the_fleets_limit_holds_below_the_adaptive_limit() -> None:
    limits = BackendLimitFixture({"m": [A], "n": [A, B]})
    limits.limits.set_shares({A: 3})
    held = limits.take("m")
    for permit in held:
        permit.place(A)
    assert (len(held), limits.limits.is_full(A), limits.limits.has_used_share(A)) == (3, True, True)
    assert limits.counted("backend_max_inflight_concurrency", backend=A) == 3
    assert len(limits.take("n")) == 10
    assert not limits.limits.has_used_share(B)


async def test_an_adaptive_limit_below_the_share_holds() -> None:
    limits = BackendLimitFixture({"m": [A]}, ceiling=4)
    limits.limits.set_shares({A: 30})
    assert len(limits.take("m")) == 4


async def test_a_changed_share_applies_to_the_requests_that_wait() -> None:
    limits = BackendLimitFixture({"m": [A]})
    limits.limits.set_shares({A: 0})
    waiter = PermitWaiter(limits.permits, "m")
    assert not waiter.done
    limits.limits.set_shares({A: 1})
    limits.permits.refresh("m")
    assert waiter.done
    limits.limits.set_shares({})
    assert len(limits.take("m")) == 9


async def test_a_limit_that_is_not_adaptive_stays() -> None:
    limits = BackendLimitFixture({"m": [A]}, adaptive=False)
    permit = limits.take("m", 1)[0]
    permit.place(A)
    permit.record_outcome(REFUSED)
    assert limits.limits.limit_of(A) == 10


async def test_limits_and_requests_in_flight_are_shown_per_backend_url() -> None:
    limits = BackendLimitFixture({"m": [B]})
    permit = limits.take("m", 1)[0]
    permit.place(B)
    label = {"backend": B}
    assert limits.counted("backend_inflight_requests", **label) == 1
    assert limits.counted("backend_max_inflight_concurrency", **label) == 10
    permit.record_outcome(REFUSED)
    assert limits.counted("backend_limit_changes_total", cause="rejected", **label) == 1
    assert limits.counted("backend_max_inflight_concurrency", **label) == limits.limits.limit_of(B) == 1


async def test_a_busy_backend_is_tried_again_while_all_its_requests_hang() -> None:
    limits = BackendLimitFixture({"m": [A]})
    requests = limits.take("m")
    for permit in requests:
        permit.place(A)
    for permit in requests[1:]:
        permit.record_outcome(BUSY)
        permit.release()
    assert limits.limits.limit_of(A) == 1

    def seconds_until_sent() -> float:
        waiter, since = PermitWaiter(limits.permits, "m"), limits.now
        while not waiter.done and limits.now < since + 60:
            limits.now += 0.25
            limits.permits.refresh("m")
        waiter.permit.place(A)
        waiter.permit.record_outcome(BUSY)
        waiter.permit.release()
        return limits.now - since

    assert [seconds_until_sent() for _ in range(4)] == [30.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("outcome", "signal"),
    [
        (Outcome(retry_policy.SUCCESS, 200), LoadSignal.RESPONDED),
        (Outcome(classify(429)), LoadSignal.REJECTED),
        (Outcome(classify(503)), LoadSignal.REJECTED),
        (BUSY, LoadSignal.BUSY),
        (Outcome(retry_policy.RESPONSE_TIMEOUT), LoadSignal.TIMED_OUT),
        (Outcome(retry_policy.NOT_SENT), LoadSignal.NEUTRAL),
        (Outcome(classify(400), 400), LoadSignal.ANSWERED),
        (Outcome(classify(500), 500), LoadSignal.ANSWERED),
        (Outcome(classify(401), 401), LoadSignal.ANSWERED),
    ],
    ids=lambda value: value.value if isinstance(value, LoadSignal) else value.verdict.category,
)
def test_only_outcomes_that_depend_on_load_are_signals(outcome: Outcome, signal: LoadSignal) -> None:
    assert load_signal(outcome) is signal


@pytest.mark.parametrize(
    ("shared_from", "is_slow"),
    [(None, False), (0, True), (30, True)],
    ids=["not shared", "shared", "shared later"],
)
async def test_a_backend_that_serves_interactive_traffic_too_gets_less_when_it_is_a_little_slower(
    shared_from: int | None, is_slow: bool
) -> None:
    limits = BackendLimitFixture({"m": [A]}, ceiling=100)
    held = limits.take_and_place("m", A)
    for number in range(65):
        if number == shared_from:
            limits.limits.set_interactive([A])
        limits.now += 1.0 if number < 60 else 1.4
        ended, held = held, list[Permit]()
        for permit in ended:
            permit.record_outcome(Outcome(retry_policy.SUCCESS, 200))
            permit.release()
            held += limits.take_and_place("m", A)
    assert bool(limits.counted("backend_limit_changes_total", cause="slow", backend=A)) is is_slow
