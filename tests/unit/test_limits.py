"""Permits and the byte budget."""

import time
from collections import Counter
from collections.abc import Callable

import pytest

from batchwright.inference.adaptive import BackendLimits, Policy
from batchwright.inference.limits import ByteBudget, Permit, Permits
from batchwright.telemetry.metrics import Metrics
from tests.fakes.waiters import Asked, taken

MIB = 1024 * 1024


def permits_of(
    *,
    total: int,
    per_model: int,
    own: dict[str, int] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Permits:
    """Without backends that could hold anybody back."""
    backends = BackendLimits(Policy(), lambda model: (), Metrics())
    return Permits(total=total, per_model=per_model, own=(own or {}).get, backends=backends, clock=clock)


def granted(waiters: list[Asked]) -> list[Permit]:
    return [waiter.permit for waiter in waiters if waiter.done]


async def test_a_models_limit_comes_first_then_the_global_one() -> None:
    permits = permits_of(total=5, per_model=3)
    first = granted([Asked(permits, "a") for _ in range(9)])
    second = granted([Asked(permits, "b") for _ in range(9)])
    assert (len(first), len(second), permits.used) == (3, 2, 5)


async def test_one_model_never_holds_all_permits() -> None:
    permits = permits_of(total=5, per_model=100)
    assert len(granted([Asked(permits, "a") for _ in range(9)])) == 4
    assert Asked(permits, "b").done


async def test_a_models_own_limit_replaces_the_default() -> None:
    permits = permits_of(total=50, per_model=3, own={"a": 7})
    assert (permits.limit_of("a"), permits.limit_of("b")) == (7, 3)


async def test_a_models_own_limit_may_change_while_it_is_used() -> None:
    own = {"a": 1}
    now = 0.0
    permits = permits_of(total=50, per_model=3, own=own, clock=lambda: now)
    waiters = [Asked(permits, "a") for _ in range(5)]
    assert len(granted(waiters)) == 1
    own["a"], now = 4, now + 1
    granted(waiters)[0].release()
    assert len(granted(waiters)) == 5


async def test_a_single_permit_serves_every_model() -> None:
    permits = permits_of(total=1, per_model=10)
    permit = Asked(permits, "a").permit
    waiter = Asked(permits, "b")
    assert not waiter.done
    permit.release()
    assert waiter.done


@pytest.mark.parametrize("least", [1, 2])
async def test_models_take_turns_at_a_backend_that_takes_fewer_requests_than_it_serves_models(
    least: int,
) -> None:
    backends = BackendLimits(Policy(adaptive=False, ceiling=least), lambda model: ("http://one",), Metrics())
    permits = Permits(total=100, per_model=10, backends=backends)
    in_flight = [Asked(permits, "a").permit for _ in range(least)]
    waiting = {model: Asked(permits, model) for model in ("a", "b", "c")}
    served: Counter[str] = Counter()
    for _ in range(30):
        in_flight.pop(0).release()
        model = next(name for name, waiter in waiting.items() if waiter.done)
        in_flight.append(waiting[model].permit)
        waiting[model] = Asked(permits, model)
        served[model] += 1
    assert served == {"a": 10, "b": 10, "c": 10}


async def test_a_permit_is_there_at_once_where_nobody_waits() -> None:
    permits = permits_of(total=3, per_model=2)
    assert [Asked(permits, "a").done for _ in range(3)] == [True, True, False]
    assert (permits.used, permits.used_by("a")) == (2, 2)


async def test_nobody_takes_a_permit_past_those_who_wait() -> None:
    permits = permits_of(total=9, per_model=1)
    permit = Asked(permits, "a").permit
    waiter = Asked(permits, "a")
    assert taken(permits, "a", "u") is None
    permit.release()
    assert waiter.done
    assert taken(permits, "a", "u") is None


async def test_what_was_taken_counts_for_the_tenants_share() -> None:
    permits = permits_of(total=9, per_model=2)
    first, second = taken(permits, "a"), taken(permits, "a")
    waiting = {tenant: Asked(permits, "a", tenant) for tenant in ("t", "u")}
    assert first is not None
    assert second is not None
    first.release()
    assert (waiting["t"].done, waiting["u"].done) == (False, True)


async def test_a_permit_is_given_back_once() -> None:
    permits = permits_of(total=2, per_model=2)
    permit = Asked(permits, "a").permit
    permit.release()
    permit.release()
    assert (permits.used, permits.used_by("a")) == (0, 0)


async def test_a_withdrawn_waiter_gets_nothing() -> None:
    permits = permits_of(total=1, per_model=1)
    permit = Asked(permits, "a").permit
    withdrawn, next_one = Asked(permits, "a"), Asked(permits, "a", "u")
    withdrawn.withdraw()
    permit.release()
    assert next_one.done
    assert permits.used == 1


def served(permits: Permits, slices: list[tuple[str, int]], times: int) -> list[tuple[str, int]]:
    """Who gets the one permit there is, of slices (a batch, and a number in it) that always want it."""
    permit = Asked(permits, "a").permit
    waiting = {one: Asked(permits, "a", batch=one[0], number=one[1]) for one in slices}
    order: list[tuple[str, int]] = []
    while len(order) < times:
        permit.release()
        found = next(one for one, waiter in waiting.items() if waiter.done)
        order.append(found)
        permit = waiting[found].permit
        waiting[found] = Asked(permits, "a", batch=found[0], number=found[1])
    return order


async def test_a_tenants_batches_take_turns_however_many_slices_they_have() -> None:
    slices = [("large", 0), ("large", 1), ("large", 2), ("small", 0)]
    order = served(permits_of(total=2, per_model=1), slices, 6)
    assert [batch for batch, _ in order] == ["large", "small"] * 3


async def test_the_first_of_a_batchs_slices_goes_first() -> None:
    permits = permits_of(total=2, per_model=1)
    assert served(permits, [("b", 7), ("b", 4), ("b", 9)], 3) == [("b", 4)] * 3


async def test_slices_follow_each_other_as_they_have_no_more_to_send() -> None:
    permits = permits_of(total=2, per_model=1)
    permit = Asked(permits, "a").permit
    waiting = {number: Asked(permits, "a", number=number) for number in (3, 1, 2)}
    order: list[int] = []
    while waiting:
        permit.release()
        found = next(number for number, waiter in waiting.items() if waiter.done)
        order.append(found)
        permit = waiting.pop(found).permit
    assert order == [1, 2, 3]


async def test_a_slice_that_withdraws_leaves_the_others_of_its_batch_in_the_queue() -> None:
    permits = permits_of(total=2, per_model=1)
    permit = Asked(permits, "a").permit
    first, second = Asked(permits, "a", number=0), Asked(permits, "a", number=1)
    first.withdraw()
    permit.release()
    assert (first.done, second.done) == (False, True)


async def test_tenants_share_by_weight_however_many_slices_they_have() -> None:
    permits = permits_of(total=2, per_model=1)
    permit = Asked(permits, "a", "first").permit
    weights = {"heavy": 3.0, "light": 1.0}
    waiters = [
        (name, Asked(permits, "a", name, weights[name])) for name in ["heavy", "light", "light", "light"]
    ]
    served: Counter[str] = Counter()
    for _ in range(400):
        permit.release()
        place = next(n for n, (_, waiter) in enumerate(waiters) if waiter.done)
        name, waiter = waiters.pop(place)
        permit = waiter.permit
        served[name] += 1
        waiters.append((name, Asked(permits, "a", name, weights[name])))
    assert 295 <= served["heavy"] <= 305


async def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    permits = permits_of(total=2, per_model=1)
    for _ in range(50):
        Asked(permits, "a", "busy").permit.release()
    permit = Asked(permits, "a", "busy").permit
    waiters = [(name, Asked(permits, "a", name)) for name in ["new"] * 10 + ["busy"] * 10]
    order: list[str] = []
    while waiters:
        permit.release()
        place = next(n for n, (_, waiter) in enumerate(waiters) if waiter.done)
        name, waiter = waiters.pop(place)
        permit = waiter.permit
        order.append(name)
    assert 5 <= Counter(order[:10])["new"] <= 6


def test_shards_take_half_and_a_huge_one_needs_an_empty_house() -> None:
    budget = ByteBudget(20 * MIB)
    some, more = budget.want_shard(6 * MIB), budget.want_shard(4 * MIB)
    huge = budget.want_shard(50 * MIB)
    assert (some.is_held, more.is_held, huge.is_held) == (True, True, False)
    budget.leave(some)
    assert not huge.is_held
    budget.leave(more)
    assert huge.is_held
    budget.leave(huge)
    assert budget.held == 0


def test_a_large_shard_has_its_turn_however_many_small_ones_follow() -> None:
    budget = ByteBudget(20 * MIB)
    held = [budget.want_shard(4 * MIB) for _ in range(2)]
    large = budget.want_shard(9 * MIB)
    small = [budget.want_shard(4 * MIB) for _ in range(3)]
    for room in held:
        budget.leave(room)
    assert (large.is_held, [room.is_held for room in small]) == (True, [False] * 3)
    budget.leave(large)
    assert [room.is_held for room in small] == [True, True, False]


def test_a_shard_that_is_no_longer_wanted_holds_nobody_up() -> None:
    budget = ByteBudget(20 * MIB)
    budget.want_shard(8 * MIB)
    large, small = budget.want_shard(9 * MIB), budget.want_shard(MIB)
    assert not small.is_held
    budget.leave(large)
    assert (small.is_held, budget.held) == (True, 9 * MIB)


def test_shards_never_starve_answers() -> None:
    budget = ByteBudget(20 * MIB)
    assert budget.want_shard(10 * MIB).is_held
    assert budget.has_room


def test_requests_wait_while_answers_fill_their_half() -> None:
    budget = ByteBudget(20 * MIB)
    budget.answers += 11 * MIB
    assert not budget.has_room
    budget.answers -= 11 * MIB
    assert budget.has_room


def test_large_answers_make_fewer_requests_go_out_together() -> None:
    budget = ByteBudget(20 * MIB)
    budget.learn(3 * MIB)
    held: list[int] = []
    while budget.has_room:
        held.append(budget.expect(1000))
    assert len(held) == 3
    for size in held:
        budget.answers -= size
    assert budget.held == 0


def test_one_request_may_always_go_out() -> None:
    budget = ByteBudget(8 * MIB)
    budget.learn(16 * MIB)
    assert budget.has_room
