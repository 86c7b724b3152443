"""The memory budget of a worker: shards (stored objects with input lines) may use one half of it, responses
the other half.
"""

from batchwright.inference.limits.memory_budget import MemoryBudget

MIB = 1024 * 1024


def test_shards_use_half_of_the_budget_and_a_huge_one_is_granted_when_no_other_is_held() -> None:
    budget = MemoryBudget(20 * MIB)
    some, more = budget.reserve(6 * MIB), budget.reserve(4 * MIB)
    huge = budget.reserve(50 * MIB)
    assert (some.granted, more.granted, huge.granted) == (True, True, False)
    budget.release(some)
    assert not huge.granted
    budget.release(more)
    assert huge.granted
    budget.release(huge)
    assert budget.held == 0


def test_a_large_shard_is_granted_before_small_ones_that_came_later() -> None:
    budget = MemoryBudget(20 * MIB)
    held = [budget.reserve(4 * MIB) for _ in range(2)]
    large = budget.reserve(9 * MIB)
    small = [budget.reserve(4 * MIB) for _ in range(3)]
    for room in held:
        budget.release(room)
    assert (large.granted, [room.granted for room in small]) == (True, [False] * 3)
    budget.release(large)
    assert [room.granted for room in small] == [True, True, False]


def test_a_released_reservation_does_not_block_the_next() -> None:
    budget = MemoryBudget(20 * MIB)
    budget.reserve(8 * MIB)
    large, small = budget.reserve(9 * MIB), budget.reserve(MIB)
    assert not small.granted
    budget.release(large)
    assert (small.granted, budget.held) == (True, 9 * MIB)


def test_a_shard_that_becomes_smaller_leaves_room_for_the_next() -> None:
    budget = MemoryBudget(20 * MIB)
    shard, waiting = budget.reserve(8 * MIB), budget.reserve(6 * MIB)
    budget.shrink(shard, 5 * MIB)
    assert not waiting.granted
    budget.shrink(shard, 4 * MIB)
    assert waiting.granted
    budget.release(shard)
    budget.release(waiting)
    assert budget.held == 0


def test_shards_never_starve_responses() -> None:
    budget = MemoryBudget(20 * MIB)
    assert budget.reserve(10 * MIB).granted
    assert budget.has_room()


def test_requests_wait_while_responses_fill_their_half() -> None:
    budget = MemoryBudget(20 * MIB)
    budget.response_bytes += 11 * MIB
    assert not budget.has_room()
    budget.response_bytes -= 11 * MIB
    assert budget.has_room()


def test_large_responses_reduce_how_many_requests_are_sent_together() -> None:
    budget = MemoryBudget(20 * MIB)
    budget.observe_response(3 * MIB)
    held: list[int] = []
    while budget.has_room():
        held.append(budget.reserve_response(1000))
    assert len(held) == 3
    for size in held:
        budget.response_bytes -= size
    assert budget.held == 0


def test_one_request_may_always_be_sent() -> None:
    budget = MemoryBudget(8 * MIB)
    budget.observe_response(16 * MIB)
    assert budget.has_room()
