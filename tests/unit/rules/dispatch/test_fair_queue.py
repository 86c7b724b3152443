"""Order of one tenant's requests for permits: priorities share, small batches first, none waits forever."""

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
    must_yield: Callable[[], bool] | None = None


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


def test_a_slice_that_must_yield_gets_a_permit_only_if_all_slices_of_its_batch_must() -> None:
    queue = FairQueue[Request]()
    full = {0, 2}
    for number in range(4):
        queue.add(Request("batch", number, must_yield=lambda number=number: number in full), 0.0)
    found = [queue.pop(None, BatchRanks(), 0.0) for _ in range(4)]
    assert [request.number for request in found if request is not None] == [1, 3, 0, 2]


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
