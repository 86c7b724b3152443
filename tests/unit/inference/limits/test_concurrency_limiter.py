"""Concurrency limits: permits per model and over all models, shared between tenants."""

import time
from collections import Counter
from collections.abc import Callable

import pytest

from batchwright.inference.limits.adaptive_backend_limits import AdaptiveLimitPolicy, BackendLimits
from batchwright.inference.limits.concurrency_limiter import (
    ConcurrencyLimiter,
    Permit,
    PermitRequest,
)
from batchwright.inference.limits.tenant_and_model_limits import (
    TenantAndModelLimits,
    TenantSettings,
)
from batchwright.rules.dispatch.batch_ranking import BatchRanks, Rank
from batchwright.rules.dispatch.fair_queue import fresh_fairness_key
from batchwright.telemetry.metrics import Metrics
from tests.fakes.permit_requests import PermitWaiter, taken


def permits_of(
    *,
    total: int,
    per_model: int,
    own: dict[str, int] | None = None,
    clock: Callable[[], float] = time.monotonic,
    shares: TenantSettings | None = None,
) -> ConcurrencyLimiter:
    """Return a limiter with a limit over all models and one per model, but without limits of backends.

    `own` has the limits of models that differ from `per_model`.
    """
    backends = BackendLimits(AdaptiveLimitPolicy(), lambda model: (), Metrics(), clock)
    limits = own or {}
    return ConcurrencyLimiter(
        total=total,
        model_limit=lambda model: limits.get(model, per_model),
        backends=backends,
        limits=TenantAndModelLimits(shares),
    )


def granted(waiters: list[PermitWaiter]) -> list[Permit]:
    return [waiter.permit for waiter in waiters if waiter.done]


async def test_the_limit_of_the_model_applies_before_the_global_one() -> None:
    permits = permits_of(total=5, per_model=3)
    first = granted([PermitWaiter(permits, "a") for _ in range(9)])
    second = granted([PermitWaiter(permits, "b") for _ in range(9)])
    assert (len(first), len(second), permits.used) == (3, 2, 5)


async def test_one_model_never_has_all_permits() -> None:
    permits = permits_of(total=5, per_model=100)
    assert len(granted([PermitWaiter(permits, "a") for _ in range(9)])) == 4
    assert PermitWaiter(permits, "b").done


async def test_a_models_own_limit_replaces_the_default() -> None:
    permits = permits_of(total=50, per_model=3, own={"a": 7})
    assert (permits.limit_of("a"), permits.limit_of("b")) == (7, 3)


async def test_the_limit_of_a_model_may_change_while_it_is_used() -> None:
    own = {"a": 1}
    now = 0.0
    permits = permits_of(total=50, per_model=3, own=own, clock=lambda: now)
    waiters = [PermitWaiter(permits, "a") for _ in range(5)]
    assert len(granted(waiters)) == 1
    own["a"], now = 4, now + 1
    granted(waiters)[0].release()
    assert len(granted(waiters)) == 5


async def test_a_single_permit_serves_every_model() -> None:
    permits = permits_of(total=1, per_model=10)
    permit = PermitWaiter(permits, "a").permit
    waiter = PermitWaiter(permits, "b")
    assert not waiter.done
    permit.release()
    assert waiter.done


@pytest.mark.parametrize("least", [1, 2])
async def test_models_take_turns_at_a_backend_that_takes_fewer_requests_than_it_serves_models(
    least: int,
) -> None:
    backends = BackendLimits(
        AdaptiveLimitPolicy(adaptive=False, ceiling=least), lambda model: ("http://one",), Metrics()
    )
    permits = ConcurrencyLimiter(total=100, model_limit=lambda _: 10, backends=backends)
    in_flight = [PermitWaiter(permits, "a").permit for _ in range(least)]
    waiting = {model: PermitWaiter(permits, model) for model in ("a", "b", "c")}
    served: Counter[str] = Counter()
    for _ in range(30):
        in_flight.pop(0).release()
        model = next(name for name, waiter in waiting.items() if waiter.done)
        in_flight.append(waiting[model].permit)
        waiting[model] = PermitWaiter(permits, model)
        served[model] += 1
    assert served == {"a": 10, "b": 10, "c": 10}


async def test_a_permit_is_granted_at_once_if_no_request_waits() -> None:
    permits = permits_of(total=3, per_model=2)
    assert [PermitWaiter(permits, "a").done for _ in range(3)] == [True, True, False]
    assert (permits.used, permits.used_by("a")) == (2, 2)


async def test_no_request_overtakes_waiting_ones() -> None:
    permits = permits_of(total=9, per_model=1)
    permit = PermitWaiter(permits, "a").permit
    waiter = PermitWaiter(permits, "a")
    assert taken(permits, "a", "u") is None
    permit.release()
    assert waiter.done
    assert taken(permits, "a", "u") is None


async def test_permits_granted_at_once_count_for_the_share_of_the_tenant() -> None:
    permits = permits_of(total=9, per_model=2)
    first, second = taken(permits, "a"), taken(permits, "a")
    waiting = {tenant: PermitWaiter(permits, "a", tenant) for tenant in ("t", "u")}
    assert first is not None
    assert second is not None
    first.release()
    assert (waiting["t"].done, waiting["u"].done) == (False, True)


async def test_a_permit_is_released_once() -> None:
    permits = permits_of(total=2, per_model=2)
    permit = PermitWaiter(permits, "a").permit
    permit.release()
    permit.release()
    assert (permits.used, permits.used_by("a")) == (0, 0)


async def test_a_cancelled_permit_request_gets_no_permit() -> None:
    permits = permits_of(total=1, per_model=1)
    permit = PermitWaiter(permits, "a").permit
    withdrawn, next_one = PermitWaiter(permits, "a"), PermitWaiter(permits, "a", "u")
    withdrawn.withdraw()
    permit.release()
    assert next_one.done
    assert permits.used == 1


def served(permits: ConcurrencyLimiter, slices: list[tuple[str, int]], times: int) -> list[tuple[str, int]]:
    """Return the slices in the order in which they get the only permit, until it was granted `times` times.

    A slice is a batch and a number. Each slice requests a permit again whenever it has none.
    """
    permit = PermitWaiter(permits, "a").permit
    waiting = {one: PermitWaiter(permits, "a", batch=one[0], number=one[1]) for one in slices}
    order: list[tuple[str, int]] = []
    while len(order) < times:
        permit.release()
        found = next(one for one, waiter in waiting.items() if waiter.done)
        order.append(found)
        permit = waiting[found].permit
        waiting[found] = PermitWaiter(permits, "a", batch=found[0], number=found[1])
    return order


async def test_batches_of_a_tenant_take_turns_regardless_of_their_number_of_slices() -> None:
    slices = [("large", 0), ("large", 1), ("large", 2), ("small", 0)]
    order = served(permits_of(total=2, per_model=1), slices, 6)
    assert [batch for batch, _ in order] == ["large", "small"] * 3


async def test_small_batches_go_before_large_ones_and_higher_priorities_get_more() -> None:
    class Order(TenantSettings):
        def ranks(self, model: str) -> BatchRanks:
            ranks = BatchRanks()
            ranks.update(large=Rank(is_safe=True, value=900.0), small=Rank(is_safe=True, value=9.0))
            return ranks

    now = 0.0
    permits = permits_of(total=2, per_model=1, clock=lambda: now, shares=Order())
    priorities = {"large": 3, "small": 3, "urgent": 5}
    sent: list[Permit] = []

    def wait(batch: str) -> None:
        permits.enqueue(PermitRequest("a", "t", 1.0, batch, 0, send, priority=priorities[batch]))

    def send(permit: Permit) -> None:
        sent.append(permit)
        wait(permit.request.batch_id)

    for batch in priorities:
        wait(batch)
    for _ in range(1000):
        now += 1.0
        sent[-1].release()
    counts = Counter(permit.request.batch_id for permit in sent)
    assert 0.75 <= counts["urgent"] / counts.total() <= 0.85
    assert counts["small"] >= 3 * counts["large"] > 0


async def test_the_first_slice_of_a_batch_is_served_first() -> None:
    permits = permits_of(total=2, per_model=1)
    assert served(permits, [("b", 7), ("b", 4), ("b", 9)], 3) == [("b", 4)] * 3


async def test_slices_of_a_batch_get_permits_in_their_order() -> None:
    permits = permits_of(total=2, per_model=1)
    permit = PermitWaiter(permits, "a").permit
    waiting = {number: PermitWaiter(permits, "a", number=number) for number in (3, 1, 2)}
    order: list[int] = []
    while waiting:
        permit.release()
        found = next(number for number, waiter in waiting.items() if waiter.done)
        order.append(found)
        permit = waiting.pop(found).permit
    assert order == [1, 2, 3]


async def test_a_slice_that_cancels_keeps_the_others_of_its_batch_in_the_queue() -> None:
    permits = permits_of(total=2, per_model=1)
    permit = PermitWaiter(permits, "a").permit
    first, second = PermitWaiter(permits, "a", number=0), PermitWaiter(permits, "a", number=1)
    first.withdraw()
    permit.release()
    assert (first.done, second.done) == (False, True)


async def test_tenants_share_by_weight_regardless_of_their_number_of_slices() -> None:
    now = 0.0
    permits = permits_of(total=2, per_model=1, clock=lambda: now)
    permit = PermitWaiter(permits, "a", "first").permit
    weights = {"heavy": 3.0, "light": 1.0}
    waiters = [
        (name, PermitWaiter(permits, "a", name, weights[name]))
        for name in ["heavy", "light", "light", "light"]
    ]
    served: Counter[str] = Counter()
    for _ in range(400):
        now += 1.0
        permit.release()
        place = next(n for n, (_, waiter) in enumerate(waiters) if waiter.done)
        name, waiter = waiters.pop(place)
        permit = waiter.permit
        served[name] += 1
        waiters.append((name, PermitWaiter(permits, "a", name, weights[name])))
    assert 295 <= served["heavy"] <= 305


async def test_an_idle_tenant_accumulates_no_credit() -> None:
    now = 0.0
    permits = permits_of(total=2, per_model=1, clock=lambda: now)
    for _ in range(50):
        permit = PermitWaiter(permits, "a", "busy").permit
        now += 1.0
        permit.release()
    permit = PermitWaiter(permits, "a", "busy").permit
    waiters = [(name, PermitWaiter(permits, "a", name)) for name in ["new"] * 10 + ["busy"] * 10]
    order: list[str] = []
    while waiters:
        now += 1.0
        permit.release()
        place = next(n for n, (_, waiter) in enumerate(waiters) if waiter.done)
        name, waiter = waiters.pop(place)
        permit = waiter.permit
        order.append(name)
    assert 5 <= Counter(order[:10])["new"] <= 6


async def test_without_room_no_permit_is_granted_and_new_room_goes_to_the_next_in_the_queue() -> None:
    has_room = True
    backends = BackendLimits(AdaptiveLimitPolicy(), lambda model: (), Metrics())
    permits = ConcurrencyLimiter(
        total=10, model_limit=lambda _: 9, backends=backends, has_room=lambda: has_room
    )
    (permit,) = granted([PermitWaiter(permits, "m", tenant="busy")])
    has_room = False
    busy, new = (
        [PermitWaiter(permits, "m", tenant="busy") for _ in range(9)],
        PermitWaiter(permits, "m", tenant="new"),
    )
    assert not granted([*busy, new])
    has_room = True
    permits.release(permit)
    assert new.done
    assert len(granted(busy)) == 8


async def test_lines_of_the_same_tenant_do_not_count_as_waiting_competitors() -> None:
    permits = permits_of(total=1, per_model=1)
    held = PermitWaiter(permits, "a").permit
    PermitWaiter(permits, "a", "t")
    assert [permits.others_wait("a", tenant) for tenant in ("t", "u")] == [False, True]
    held.release()


def test_a_fresh_fairness_key_fits_the_length_limit_of_temporal() -> None:
    keys = {fresh_fairness_key("t" * 63 + last, batch) for last in "ab" for batch in ("batch_1", "batch_2")}
    assert len(keys) == 4
    assert max(len(key.encode()) for key in keys) <= 64
