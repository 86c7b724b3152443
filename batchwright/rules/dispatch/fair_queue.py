"""Queue of one tenant's permit requests: how its priorities share, and the order of its batches."""

from bisect import insort_left
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from batchwright.rules.dispatch.batch_order import Rank, priority_weight
from batchwright.rules.dispatch.fair_share import FairShare

_TURN_EVERY = 5  # one of so many permits of a priority goes to the batch that has waited longest


class QueuedRequest(Protocol):
    """Request of one slice for a permit, the right to have one request in flight.

    Attributes:
        number: the slice's number in its batch.
        key_id: id of the API key that created the batch; empty if there was none.
        weight: weight of the tenant.
    """

    batch_id: str
    number: int
    key_id: str
    priority: int
    weight: float


Request = TypeVar("Request", bound=QueuedRequest)


class _Priority(Generic[Request]):
    """Waiting requests of one priority, by batch. Each list is in descending order of slice numbers.

    The batches are in the order of their last permits. `permits` is the number of permits so far.
    """

    __slots__ = ("batches", "permits")

    def __init__(self) -> None:
        self.batches: dict[str, list[Request]] = {}
        self.permits = 0

    def next_batch(self, is_capped: Callable[[str], bool], ranks: Mapping[str, Rank]) -> str | None:
        """Return the id of the batch that gets the next permit; None if no batch may get one.

        Args:
            is_capped: returns True if an API key has reached its cap. Batches of this key are skipped.
            ranks: the rank of each batch.
        """
        batches = self.batches
        takes_turns = len(batches) == 1 or not ranks or self.permits % _TURN_EVERY == _TURN_EVERY - 1
        found = next(iter(batches)) if takes_turns else min(batches, key=ranks.__getitem__)
        key_id = batches[found][-1].key_id
        if not (key_id and is_capped(key_id)):
            return found
        waiting = [
            batch_id
            for batch_id, slices in batches.items()
            if not (slices[-1].key_id and is_capped(slices[-1].key_id))
        ]
        return (
            min(waiting, key=ranks.__getitem__) if waiting and not takes_turns else next(iter(waiting), None)
        )

    def pop(self, batch_id: str) -> Request:
        self.permits += 1
        batches = self.batches
        slices = batches[batch_id]
        request = slices.pop()
        if not slices:
            del batches[batch_id]
        elif len(batches) > 1:
            batches[batch_id] = batches.pop(batch_id)  # the batch is now the last in the order of permits
        return request


class FairQueue(Generic[Request]):
    """Queue of one tenant's permit requests for one model.

    Priorities share by weight and time in flight, as tenants do. Within a priority, the batch with the lowest
    rank goes first. One in five permits goes to the batch that has waited longest, so no batch waits forever.
    Within a batch, the slice with the lowest number goes first. The slices of a worker therefore end at
    different times, and while one of them is stored, another slice keeps sending.

    Attributes:
        shares: the shares of the priorities; None while all requests have had the same priority. If it is not
            None, call its `release` with `str(priority)` for each request that `pop` returned.
    """

    def __init__(self) -> None:
        self._priorities: dict[int, _Priority[Request]] = {}
        self._waiting = 0  # number of requests
        self.shares: FairShare | None = None

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def add(self, request: Request, now: float) -> None:
        self._waiting += 1
        priority = self._priorities.get(request.priority)
        if priority is None:
            priority = self._priorities[request.priority] = _Priority()
            if len(self._priorities) == 2:
                self.shares = FairShare()
                self._start_waiting(next(iter(self._priorities)), now)
        if self.shares is not None and not priority.batches:
            self._start_waiting(request.priority, now)
        slices = priority.batches.get(request.batch_id)
        if slices is None:
            priority.batches[request.batch_id] = [request]
        elif request.number < slices[-1].number:  # the usual case: this slice was first a moment ago
            slices.append(request)
        else:
            insort_left(slices, request, key=lambda waiting: -waiting.number)

    def remove(self, request: Request) -> None:
        """Remove a waiting request. Raise ValueError or KeyError if the request is not in the queue."""
        batches = self._priorities[request.priority].batches
        slices = batches[request.batch_id]
        slices.remove(request)
        self._waiting -= 1
        if not slices:
            del batches[request.batch_id]

    def pop(self, is_capped: Callable[[str], bool], ranks: Mapping[str, Rank], now: float) -> Request | None:
        """Remove and return the next request; None if no request may be sent.

        Args:
            is_capped: returns True if an API key has reached its cap. Batches of this key are skipped.
            ranks: the rank of each batch.
            now: the current time in seconds.
        """
        found: dict[str, str] = {}
        for number, priority in self._priorities.items():
            if priority.batches and (batch_id := priority.next_batch(is_capped, ranks)) is not None:
                if self.shares is None:  # the only priority
                    self._waiting -= 1
                    return priority.pop(batch_id)
                found[str(number)] = batch_id
        if self.shares is None or not found:
            return None
        name = self.shares.next_tenant(found, now)
        self.shares.grant(name, priority_weight(int(name)), now)
        self._waiting -= 1
        return self._priorities[int(name)].pop(found[name])

    def next_weight(self, is_capped: Callable[[str], bool]) -> float | None:
        """Return the tenant's weight according to a waiting batch.

        Return None if the API keys of all waiting batches have reached their caps.
        """
        for priority in self._priorities.values():
            for slices in priority.batches.values():
                if not (slices[-1].key_id and is_capped(slices[-1].key_id)):
                    return slices[-1].weight
        return None

    def _start_waiting(self, number: int, now: float) -> None:
        if self.shares is not None:
            waiting = [
                str(other) for other, each in self._priorities.items() if each.batches and other != number
            ]
            self.shares.start_waiting(str(number), priority_weight(number), waiting, now)
