"""The order in which requests of one tenant get permits.

Priorities share the permits, small batches come first, and no request waits forever.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from batchwright.rules.dispatch.batch_ranking import BatchRanks, Rank
from batchwright.rules.dispatch.fair_queue import FairQueue, FairShare


@dataclass(eq=False)
class Request:
    batch_id: str
    number: int = 0
    key_id: str = ""
    priority: int = 3
    weight: float = 1.0
    priorities: FairShare | None = None
    cost: Callable[[], float] | None = None


class Traffic:
    """Batches of a tenant that always have another line. Each request holds its permit for one second."""

    def __init__(self, permits: int = 4, capped: str = "") -> None:
        self.ranks = BatchRanks()
        self._permits, self._capped, self._now = permits, capped, 0.0
        self._queue, self._in_flight = FairQueue[Request](), list[Request]()

    def begin(
        self, batch_id: str, *, priority: int = 3, lines: float | None = None, key_id: str = ""
    ) -> None:
        if lines is not None:
            self.ranks[batch_id] = Rank(is_safe=True, value=lines)
        self._queue.add(Request(batch_id, priority=priority, key_id=key_id), self._now)

    def run(self, seconds: int) -> list[Request]:
        """Run for `seconds`. Return the requests that were sent, in order."""
        sent: list[Request] = []
        for _ in range(seconds):
            self._now += 1.0
            for request in self._in_flight:
                if request.priorities is not None:
                    request.priorities.release(str(request.priority), self._now, is_contended=True)
            self._in_flight.clear()
            while len(self._in_flight) < self._permits:
                request = self._queue.pop(lambda key_id: key_id == self._capped, self.ranks, self._now)
                if request is None:
                    break
                request.priorities = self._queue.shares
                self._in_flight.append(request)
                sent.append(request)
                self._queue.add(Request(request.batch_id, 0, request.key_id, request.priority), self._now)
        return sent


def test_of_the_slices_of_a_batch_the_one_with_the_lowest_cost_goes_first() -> None:
    queue = FairQueue[Request]()
    for number, cost in enumerate([2, 1, 0, 1, 0, 2]):
        queue.add(Request("batch", number, cost=lambda cost=cost: cost), 0.0)
    found = [queue.pop(None, BatchRanks(), 0.0) for _ in range(6)]
    assert [request.number for request in found if request is not None] == [2, 4, 1, 3, 0, 5]


@pytest.mark.parametrize("permits", [1, 2, 5, 64])
@pytest.mark.parametrize(("lower", "higher", "share"), [(1, 5, 1 / 17), (2, 3, 1 / 3), (3, 5, 1 / 5)])
def test_priorities_share_by_weight_and_none_starves(
    permits: int, lower: int, higher: int, share: float
) -> None:
    traffic = Traffic(permits)
    traffic.begin("low", priority=lower)
    traffic.begin("high", priority=higher)
    traffic.begin("another", priority=higher)
    traffic.run(100)
    sent = Counter(request.priority for request in traffic.run(6800 // permits))
    assert sent[lower] / sent.total() == pytest.approx(share, rel=0.15)


def test_a_priority_that_comes_later_is_next() -> None:
    traffic = Traffic(1)
    traffic.begin("old", priority=3)
    traffic.run(50)
    traffic.begin("new", priority=5)
    assert "new" in {request.batch_id for request in traffic.run(2)}


def test_a_priority_that_waits_alone_gets_all_permits() -> None:
    traffic = Traffic()
    traffic.begin("only", priority=1)
    assert len(traffic.run(10)) == 40


def test_the_batch_with_the_fewest_lines_left_gets_most_permits_and_each_other_one_some() -> None:
    traffic = Traffic()
    for name, lines in (("large", 9000.0), ("small", 10.0), ("medium", 500.0)):
        traffic.begin(name, lines=lines)
    sent = Counter(request.batch_id for request in traffic.run(1000))
    assert sent["small"] >= 0.8 * sent.total()
    assert min(sent["large"], sent["medium"]) >= 0.05 * sent.total()


def test_a_batch_at_risk_goes_before_small_ones() -> None:
    traffic = Traffic()
    traffic.begin("small", lines=10.0)
    traffic.begin("at risk")
    traffic.ranks["at risk"] = Rank(is_safe=False, value=3600.0)
    sent = Counter(request.batch_id for request in traffic.run(1000))
    assert sent["at risk"] >= 0.8 * sent.total()


def test_batches_of_which_nothing_is_known_take_turns() -> None:
    traffic = Traffic()
    for name in ("a", "b", "c"):
        traffic.begin(name)
    assert set(Counter(request.batch_id for request in traffic.run(3)).values()) == {4}


def test_a_batch_whose_key_is_capped_is_skipped_whatever_its_priority_and_rank() -> None:
    traffic = Traffic(capped="key")
    traffic.begin("capped", priority=5, lines=1.0, key_id="key")
    traffic.begin("open", priority=1, lines=100.0)
    assert {request.batch_id for request in traffic.run(10)} == {"open"}


def pop_all(queue: FairQueue[Request]) -> list[Request]:
    found: list[Request] = []
    while (request := queue.pop(None, BatchRanks(), 0.0)) is not None:
        found.append(request)
    return found


def test_the_slice_with_the_lowest_number_goes_first_in_whatever_order_slices_come() -> None:
    queue = FairQueue[Request]()
    for number in (4, 2, 7, 1, 5):
        queue.add(Request("batch", number), 0.0)
    assert queue.waiting == 5
    assert [request.number for request in pop_all(queue)] == [1, 2, 4, 5, 7]
    assert queue.waiting == 0


def test_batches_with_several_waiting_slices_take_turns_too() -> None:
    queue = FairQueue[Request]()
    for batch in ("a", "b", "c"):
        for number in (0, 1):
            queue.add(Request(batch, number), 0.0)
    assert [request.batch_id for request in pop_all(queue)] == ["a", "b", "c", "a", "b", "c"]


def test_a_removed_request_gets_no_permit_and_leaves_those_of_its_batch_in_the_queue() -> None:
    queue = FairQueue[Request]()
    first, second, other = Request("a", 0), Request("a", 1), Request("b", 0)
    for request in (first, second, other):
        queue.add(request, 0.0)
    queue.remove(first)
    assert queue.waiting == 2
    queue.remove(other)
    with pytest.raises(KeyError):
        queue.remove(other)
    assert pop_all(queue) == [second]
    assert queue.waiting == 0


def test_the_weight_of_a_tenant_is_that_of_a_request_whose_key_is_not_capped() -> None:
    queue = FairQueue[Request]()
    queue.add(Request("a", 1, key_id="capped", weight=5.0), 0.0)
    queue.add(Request("a", 0, key_id="capped", weight=6.0), 0.0)
    assert queue.next_weight(None) == 6.0
    assert queue.next_weight(lambda key_id: key_id == "capped") is None
    queue.add(Request("b", 0, key_id="free", priority=2, weight=7.0), 0.0)
    queue.add(Request("c", 0, weight=8.0), 0.0)
    assert queue.next_weight(lambda key_id: key_id == "capped") == 8.0  # requests without a key have no cap
    assert queue.next_weight(lambda key_id: True) == 8.0


class Tenants:
    """Two tenants that always wait for permits. `permits` requests are in flight at a time, each for one
    second.
    """

    def __init__(self, permits: int, **weights: float) -> None:
        self.share, self.now, self.weights = FairShare(), 0.0, weights
        self._permits = permits
        for number, (tenant, weight) in enumerate(weights.items()):
            self.share.start_waiting(tenant, weight, list(weights)[:number], self.now)

    def run(self, seconds: int) -> Counter[str]:
        """Run for `seconds`. Return how many requests each tenant has sent."""
        sent = Counter[str]()
        for _ in range(seconds):
            flying: list[str] = []
            for _ in range(self._permits):
                tenant = self.share.next_tenant(self.weights, self.now)
                self.share.grant(tenant, self.weights[tenant], self.now)
                flying.append(tenant)
            self.now += 1.0
            for tenant in flying:
                self.share.release(tenant, self.now, is_contended=True)
            sent.update(flying)
        return sent


@pytest.mark.parametrize("permits", [1, 8])
def test_a_changed_weight_of_a_tenant_applies_to_its_next_requests_and_adds_no_debt(permits: int) -> None:
    tenants = Tenants(permits, a=1.0, b=1.0)
    sent = tenants.run(100)
    assert sent["a"] == pytest.approx(sent["b"], abs=permits + 1)
    tenants.weights["a"] = 3.0
    tenants.share.refresh(tenants.weights, tenants.weights, tenants.now)
    sent = tenants.run(100)
    assert sent["a"] / sent.total() == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(("weight", "part"), [(10**6, 1000 / 1001), (10**-6, 0.001 / 1.001)])
def test_a_weight_beyond_the_allowed_range_counts_as_the_nearest_allowed_one(
    weight: float, part: float
) -> None:
    sent = Tenants(1, a=weight, b=1.0).run(4004)
    assert sent["a"] / sent.total() == pytest.approx(part, abs=0.0005)


def test_tenants_that_were_idle_for_some_seconds_are_forgotten_unless_they_wait_or_have_requests() -> None:
    share = FairShare()
    for tenant in ("idle", "waits", "flies", "recent"):
        share.start_waiting(tenant, 1.0, [], 0.0)
    share.grant("flies", 1.0, 0.0)
    share.grant("recent", 1.0, 0.0)
    share.release("recent", 1.5, is_contended=False)
    share.refresh({}, ["waits"], 6.0)
    assert share.next_tenant(["waits", "flies", "recent"], 6.0) == "waits"
    with pytest.raises(KeyError):
        share.grant("idle", 1.0, 6.0)
    share.release("flies", 7.0, is_contended=False)
    share.grant("recent", 1.0, 7.0)


def test_a_tenant_with_a_lead_has_no_disadvantage_after_a_pause() -> None:
    tenants = Tenants(1, a=1.0)
    tenants.run(100)  # `a` is alone
    tenants.weights["b"] = 1.0
    tenants.share.start_waiting("b", 1.0, ["a"], tenants.now)
    tenants.run(20)
    tenants.now += 5.1
    for tenant in ("a", "b"):
        tenants.share.start_waiting(tenant, 1.0, ["a", "b"], tenants.now)
    sent = tenants.run(20)
    assert sent["a"] == pytest.approx(10, abs=1)
