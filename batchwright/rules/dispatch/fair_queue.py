"""Select the waiting request that gets the next permit (the right to have one request in flight) of a model.

`FairShare` selects the tenant, in proportion to the weights of the tenants. For this tenant, `FairQueue`
selects the priority, the batch and the slice (part of the batch).
"""

import hashlib
import math
from bisect import insort_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from batchwright.rules.dispatch.batch_ranking import Rank, priority_weight

MIN_WEIGHT = 0.001
MAX_WEIGHT = 1000.0
_LEAD_SECONDS = 5.0  # a lead of so many seconds counts as one request in flight, divided by the weight
_PAUSE_SECONDS = 5.0  # after so long without requests, a tenant has no debt left
_GRANT_SECONDS = 0.0001  # minimum time of a request, so that tenants alternate even if requests take no time
_TURN_EVERY = 5  # one of so many permits of a priority goes to the batch that has waited longest
_TENANT_BYTES, _DIGITS = 48, 12  # lengths of a fairness key's parts; Temporal allows 64 bytes


@dataclass(slots=True, eq=False)
class _TimeInFlight:
    """One tenant's requests to a model: how many are in flight, and how long all of them have taken.

    Attributes:
        clock: total duration of the tenant's requests, divided by the tenant's weight, in seconds. Example:
            two requests of 3 s each add 6 s if the weight is 1, and 3 s if the weight is 2. The clock also
            changes in other cases (see `FairShare`).
        since: when `clock` was last updated, in seconds.
        default_weight: the tenant's weight as long as no other weight is set for it.
        share: 1 divided by the tenant's present weight.
        in_flight: number of requests in flight.
    """

    clock: float
    since: float
    default_weight: float
    share: float
    in_flight: int = 0

    def clock_at(self, now: float) -> float:
        return self.clock + self.in_flight * (now - self.since) * self.share

    def advance(self, now: float) -> None:
        self.clock += self.in_flight * (now - self.since) * self.share
        self.since = now

    def reweigh(self, share: float, present: float) -> None:
        """Set `share` after the tenant's weight has changed, and adapt `clock`.

        The tenant's lead (the tenant's clock minus `present`) counts as a number of requests in flight (see
        `FairShare`). This number must not change with the weight, so the clock is adapted.

        Args:
            share: 1 divided by the new weight.
            present: clock of the tenant that got the last permit.
        """
        if share != self.share:
            self.clock = present + (self.clock - present) * share / self.share
            self.share = share


class FairShare:
    """The rule that decides which tenant gets the next permit (the right to have one request in flight).

    The permit goes to the waiting tenant with the fewest requests in flight in proportion to its weight.
    Example: of two tenants that always wait, the one with twice the weight has twice as many requests in
    flight. The durations of the requests do not matter.

    This rule alone is not enough: whole numbers of requests rarely match the weights exactly, and there may
    be more tenants than permits. Therefore each tenant also has a clock. The clock adds up the durations
    of the tenant's requests, divided by the tenant's weight. Example: two requests of 3 s each advance the
    clock by 6 s if the weight is 1, and by 3 s if the weight is 2.

    The lead of a tenant is the tenant's clock minus the clock of the tenant that got the last permit. The
    lead changes the number of the tenant's requests that count as in flight:

    - A positive lead adds requests. With the weight 1, a lead of 5 s adds one request. A longer lead adds
      more than one request, but always less than two.
    - A negative lead subtracts requests in the same way.

    When a tenant begins to wait, the tenant's clock is compared with the lowest clock of the other waiting
    tenants and of the tenant that got the last permit:

    - If the tenant's clock is lower, the clock is raised to the lowest clock. So a tenant gets no advantage
      from a time in which it sent little.
    - If the tenant's clock is higher, and the tenant had no request in flight for more than 5 s, the clock is
      lowered to the lowest clock. So a tenant has no disadvantage from earlier requests.
    """

    def __init__(self) -> None:
        self._usages: dict[str, _TimeInFlight] = {}
        self._last = _TimeInFlight(0.0, 0.0, 1.0, 1.0)  # usage of the tenant that got the last permit

    def start_waiting(self, tenant: str, default_weight: float, waiting: Collection[str], now: float) -> None:
        """Record that a tenant begins to wait for a permit, and set its clock as described in `FairShare`.

        Args:
            tenant: name of the tenant.
            default_weight: the tenant's weight until `grant` or `refresh` sets another weight.
            waiting: the tenants that wait. `tenant` may be one of them.
            now: the current time in seconds.
        """
        usages = self._usages
        lowest = self._last.clock_at(now)  # read before this tenant's clock changes, which may be `_last`
        usage = usages.get(tenant)
        if usage is None:
            usage = usages[tenant] = _TimeInFlight(-math.inf, now, default_weight, _share_of(default_weight))
        elif not usage.in_flight and now - usage.since > _PAUSE_SECONDS:
            usage.clock = -math.inf  # no debt after a pause
        usage.default_weight = default_weight
        if usage.clock_at(now) < lowest:
            for other in waiting:
                if other != tenant:
                    lowest = min(lowest, usages[other].clock_at(now))
            usage.clock, usage.since = max(usage.clock_at(now), lowest), now

    def next_tenant(self, waiting: Collection[str], now: float) -> str:
        """Return the waiting tenant that may send the next request.

        If the rule in `FairShare` gives the same result for several tenants, the first of them in `waiting`
        is returned.

        Args:
            waiting: the tenants that wait, at least one. `start_waiting` must have been called for each of
                them.
            now: the current time in seconds.
        """
        if len(waiting) == 1:
            return next(iter(waiting))
        usages, present = self._usages, self._last.clock_at(now)
        found, lowest = "", math.inf
        for tenant in waiting:
            usage = usages[tenant]
            in_flight, share = usage.in_flight, usage.share
            clock = usage.clock + in_flight * (now - usage.since) * share
            lead = (clock - present) / (share * _LEAD_SECONDS)
            level = (in_flight + 2.0 * lead / (1.0 + abs(lead))) * share
            if level < lowest:
                found, lowest = tenant, level
        return found

    def grant(self, tenant: str, weight: float, now: float) -> None:
        """Record that a waiting tenant got a permit: its request is in flight from the time `now`.

        `weight` is the tenant's present weight. A weight outside the allowed range counts as the nearest
        allowed weight.
        """
        usage = self._usages[tenant]
        usage.advance(now)
        if weight * usage.share != 1.0:
            usage.reweigh(_share_of(weight), self._last.clock_at(now))
        usage.in_flight += 1
        self._last = usage
        usage.clock += _GRANT_SECONDS * usage.share

    def release(self, tenant: str, now: float, *, is_contended: bool) -> None:
        """Record that a request of the tenant is no longer in flight.

        Args:
            tenant: name of the tenant.
            now: the current time in seconds.
            is_contended: True if a tenant waits for the permit that becomes free. If no tenant waits, the
                request has taken nothing from other tenants. Then a positive lead of the tenant (see
                `FairShare`) is set to 0.
        """
        usage = self._usages[tenant]
        usage.advance(now)
        usage.in_flight -= 1
        if not is_contended and usage.clock > self._last.clock_at(now):
            self._last = usage

    def refresh(self, weights: Mapping[str, float], waiting: Collection[str], now: float) -> None:
        """Set the present weights. Delete the data of tenants that had no requests for some seconds.

        Args:
            weights: the present weights of tenants. A missing tenant has its default weight.
            waiting: the tenants that wait to send a request. Their data is not deleted.
            now: the current time in seconds.
        """
        present = self._last.clock_at(now)
        for tenant, usage in list(self._usages.items()):
            if not usage.in_flight and tenant not in waiting and now - usage.since > _PAUSE_SECONDS:
                del self._usages[tenant]
            else:
                if usage.in_flight:
                    usage.advance(now)
                usage.reweigh(_share_of(weights.get(tenant, usage.default_weight)), present)


def _share_of(weight: float) -> float:
    if MIN_WEIGHT <= weight <= MAX_WEIGHT:
        return 1.0 / weight
    return 1.0 / min(max(MIN_WEIGHT, weight), MAX_WEIGHT)


class QueuedRequest(Protocol):
    """A slice's request for a permit. A slice is a part of a batch; a permit lets it send one line.

    Attributes:
        number: number of the slice among the slices of the batch for this model.
        key_id: id of the API key that created the batch; empty if there was none.
        weight: weight of the tenant.
        cost: returns the expected extra work of the backends for the system prompt of the slice's next line,
            as a number to compare slices; 0 if no extra work is expected. The slice with the lowest cost goes
            first. If `cost` is None, the cost is 0.
    """

    batch_id: str
    number: int
    key_id: str
    priority: int
    weight: float
    cost: Callable[[], float] | None


Request = TypeVar("Request", bound=QueuedRequest)
# Returns True if an API key is at its cap. None if no key has a cap.
IsCapped = Callable[[str], bool] | None


class _Priority(Generic[Request]):
    """Requests of one priority that wait for a permit. A permit is the right to have one request in flight.

    Attributes:
        batches: the list of requests of each batch, by batch id. The batch that has waited longest since its
            last permit comes first. Each list has one request per slice (part of the batch). The slice with
            the lowest number is at the end of the list, and usually gets the next permit.
        permits: number of permits granted so far.
    """

    __slots__ = ("batches", "permits")

    def __init__(self) -> None:
        self.batches: dict[str, list[Request]] = {}
        self.permits = 0

    def next_batch(self, is_capped: IsCapped, ranks: Mapping[str, Rank]) -> str | None:
        """Return the id of the batch that may send the next line; None if no batch may.

        Args:
            is_capped: called with the id of an API key. It returns True if the key already has as many
                requests in flight as it may have. The batches of this key are then skipped. Pass None if no
                key has such a cap.
            ranks: the rank of each batch. The batch with the lowest rank sends first.
        """
        batches = self.batches
        takes_turns = len(batches) == 1 or not ranks or self.permits % _TURN_EVERY == _TURN_EVERY - 1
        found = next(iter(batches)) if takes_turns else min(batches, key=ranks.__getitem__)
        key_id = batches[found][-1].key_id
        if is_capped is None or not (key_id and is_capped(key_id)):
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
        place = -1
        if len(slices) > 1 and _cost(slices[-1]):
            costs = [_cost(request) for request in reversed(slices)]
            place = -1 - costs.index(min(costs))
        request = slices.pop(place)
        if not slices:
            del batches[batch_id]
        elif len(batches) > 1:
            batches[batch_id] = batches.pop(batch_id)  # the batch is now the last in the order of permits
        return request


def _cost(request: QueuedRequest) -> float:
    return 0 if request.cost is None else request.cost()


class FairQueue(Generic[Request]):
    """The queue of one tenant's requests for permits of one model. A permit lets a slice send one line.

    A slice is a part of a batch. The next request is chosen in three steps:

    1. Priority: by weight and requests in flight, as `FairShare` chooses a tenant.
    2. Batch: the first one in the order of `BatchSchedule`. But one in five permits goes to the batch that
       has waited longest, so that no batch waits forever.
    3. Slice: the one with the lowest `cost`. If several slices have this cost, the slice with the lowest
       number goes first. So the slices end at different times: while one stores its results, another sends.

    Attributes:
        waiting: number of requests in the queue.
        shares: divides the permits between priorities; None until there are requests of a second priority.
            If `shares` is not None when `pop` returns a request, the caller must call `shares.release` with
            `str(request.priority)` when the permit of this request is given back.
    """

    def __init__(self) -> None:
        self._priorities: dict[int, _Priority[Request]] = {}
        self.waiting = 0
        self.shares: FairShare | None = None

    def add(self, request: Request, now: float) -> None:
        self.waiting += 1
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
        self.waiting -= 1
        if not slices:
            del batches[request.batch_id]

    def pop(self, is_capped: IsCapped, ranks: Mapping[str, Rank], now: float) -> Request | None:
        """Remove the next request from the queue, and return it; None if no request may be sent.

        Args:
            is_capped: called with the id of an API key. It returns True if the key already has as many
                requests in flight as it may have. The batches of this key are then skipped. Pass None if no
                key has such a cap.
            ranks: the rank of each batch. The batch with the lowest rank sends first.
            now: the current time in seconds.
        """
        found: dict[str, str] = {}
        for number, priority in self._priorities.items():
            if priority.batches and (batch_id := priority.next_batch(is_capped, ranks)) is not None:
                if self.shares is None:  # the only priority
                    self.waiting -= 1
                    return priority.pop(batch_id)
                found[str(number)] = batch_id
        if self.shares is None or not found:
            return None
        name = self.shares.next_tenant(found, now)
        self.shares.grant(name, priority_weight(int(name)), now)
        self.waiting -= 1
        return self._priorities[int(name)].pop(found[name])

    def lowest_cost(self) -> float:
        """Return the lowest `cost` (see `QueuedRequest`) of the requests in the queue; 0 if it is empty."""
        batches = (each for priority in self._priorities.values() for each in priority.batches.values())
        return min((_cost(request) for slices in batches for request in slices), default=0)

    def next_weight(self, is_capped: IsCapped) -> float | None:
        """Return the weight of the tenant whose requests are in this queue; None if no request may be sent.

        Args:
            is_capped: called with the id of an API key. It returns True if the key already has as many
                requests in flight as it may have. None if no key has such a cap.
        """
        for priority in self._priorities.values():
            for slices in priority.batches.values():
                key_id = slices[-1].key_id
                if is_capped is None or not (key_id and is_capped(key_id)):
                    return slices[-1].weight
        return None

    def _start_waiting(self, number: int, now: float) -> None:
        if self.shares is not None:
            waiting = [
                str(other) for other, each in self._priorities.items() if each.batches and other != number
            ]
            self.shares.start_waiting(str(number), priority_weight(number), waiting, now)


def fresh_fairness_key(tenant: str, stopped: str) -> str:
    """Return a new fairness key for a tenant's tasks in Temporal, after the batch `stopped` has ended early.

    Temporal divides the workers between fairness keys. It counts cancelled tasks of the old key as if they
    had run. With the old key, the next batches of the tenant would have to wait because of these tasks.
    """
    name = tenant.encode()[:_TENANT_BYTES].decode(errors="ignore")
    return f"{name}~{hashlib.sha256(f'{tenant}/{stopped}'.encode()).hexdigest()[:_DIGITS]}"
