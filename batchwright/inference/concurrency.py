"""Concurrency limits of one process: first per model, then over all models, shared fairly between tenants.

A slice is a part of a batch's lines that one activity sends. To send a line, it enqueues a `PermitRequest`,
whose callback gets a `Permit` as soon as one is free. Tenants share by the time that their requests are in
flight.
"""

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NoReturn

from msgspec import Struct

from batchwright.contracts.batch import DEFAULT_PRIORITY
from batchwright.inference.adaptive_limits import AdaptiveLimits, PlacedRequest
from batchwright.inference.outcomes import Outcome
from batchwright.inference.send_limits import Charge, Limit, SendLimits
from batchwright.rules.dispatch.batch_order import BatchRanks
from batchwright.rules.dispatch.fair_queue import FairQueue
from batchwright.rules.dispatch.fair_share import FairShare
from batchwright.rules.dispatch.retry_policy import SUCCESS

_MAX_SAMPLE_SECONDS = 1.0  # a longer time between two samples does not count as a wait
_REFRESH_SECONDS = 0.02  # time after which a model's limit and backends are looked up again
_STARVED_SECONDS = 10.0  # a model whose backends are full for so long may send one request nevertheless
_SHARES_SECONDS = 0.25  # time after which the weights of a model's tenants are looked up again


@dataclass(eq=False, slots=True)
class PermitRequest:
    """Request of one slice for one permit.

    Attributes:
        number: the slice's number in its batch.
        weight: the tenant's share relative to other tenants, unless `TenantShares` has another one.
        key_id: the API key that created the batch; empty if there was none.
        on_granted: called once with the permit. It must not raise.
    """

    model: str
    tenant: str
    weight: float
    batch_id: str
    number: int
    on_granted: Callable[["Permit"], None]
    key_id: str = ""
    priority: int = DEFAULT_PRIORITY

    def detach(self) -> None:
        """Drop the reference to `on_granted`, because it would keep a finished slice in memory."""
        self.on_granted = _already_detached


def _already_detached(_permit: "Permit") -> NoReturn:
    raise AssertionError("a permit was granted to a request that had left the queue")


_Queue = FairQueue[PermitRequest]


@dataclass(slots=True, eq=False)
class _ModelPermits:
    """Permits of one model, and the tenants that wait for them.

    Attributes:
        most: the model's limit.
        urls: the model's backends.
        ranks: the order of the batches of a tenant.
        refreshed_at: when `most`, `urls` and `ranks` were last looked up.
        waiting: queues of the tenants that may get a permit.
        capped: queues of the tenants that may send nothing now, because of the limit in `capped_by`: a
            cap on requests in flight, or a rate.
    """

    name: str
    used: int = 0
    grants: int = 0
    granted_at: int = 0  # number of the last grant, counted over all models
    most: int = 0
    urls: Collection[str] = ()
    ranks: BatchRanks = field(default_factory=BatchRanks)
    refreshed_at: float = -math.inf
    weighed_at: float = -math.inf  # when the weights of its tenants were looked up
    shares: FairShare = field(default_factory=FairShare)
    waiting: dict[str, _Queue] = field(default_factory=dict[str, _Queue])  # by tenant
    capped: dict[str, _Queue] = field(default_factory=dict[str, _Queue])  # by tenant
    capped_by: dict[str, Limit] = field(default_factory=dict[str, Limit])  # by tenant, as in `capped`
    full_since: float = math.inf  # when its backends became full; inf if they were not, when last looked up
    sampled_at: float = -math.inf  # until when waits due to limits are recorded


class Permit(Struct, eq=False):
    """The right to have one request in flight. It is valid until `release`.

    Call `place` when the request's backend is chosen, and `record_outcome` when the request has ended,
    because the limit of the backend adapts to the outcome.
    """

    owner: "ConcurrencyLimiter"
    of: _ModelPermits
    request: PermitRequest
    priorities: FairShare | None = None  # shares of the tenant's priorities, from which it is released
    placed: PlacedRequest | None = None
    charged: Charge | None = None
    released: bool = False

    def place(self, url: str) -> None:
        """Count the request at the backend `url`. A second call moves it to another backend."""
        self.placed = self.owner.backends.place(self.of.name, url, self.placed)

    def charge(self, line_bytes: int) -> None:
        """Charge the request to the rates of its model and tenant. Call it when a request is sent.

        `line_bytes` is the length of its line, from which its tokens are estimated.
        """
        owner, request = self.owner, self.request
        self.charged = owner.limits.charge(request.model, request.tenant, line_bytes, owner.clock())

    def correct_charge(self, tokens: int) -> None:
        """Replace the estimate with the number of tokens that were used; `0` if the backend refused."""
        if self.charged is not None:
            self.owner.limits.correct(self.charged, tokens)
            self.charged = None

    def may_send_again(self) -> bool:
        """Return True if the rates of its model and tenant allow one more request now."""
        limits, request, now = self.owner.limits, self.request, self.owner.clock()
        return not (limits.model_limit(request.model, now) or limits.tenant_rate(request.tenant, now))

    def record_outcome(self, outcome: Outcome) -> None:
        """Report how the request ended, which may change its backend's limit. Call it before `release`."""
        if outcome.verdict is not SUCCESS:
            self.of.refreshed_at = -math.inf  # a circuit may open: look the backends up at once
        if self.placed is not None:
            self.owner.backends.record_outcome(self.placed, outcome)

    def release(self) -> None:
        self.owner.release(self)


class ConcurrencyLimiter:
    """Grant the permits of one process to waiting slices, within the limits of models and backends.

    A model may use as many permits as its own limit and the adaptive limits of its backends both allow. A
    slice waits for one permit at a time. Among models, the one that uses the fewest permits gets the next
    permit. Among the tenants of a model, `FairShare` decides by weight and time in flight, and among the
    priorities and batches of a tenant, `FairQueue` does. A tenant, an API key or a model at one of its
    `SendLimits` is skipped.
    """

    def __init__(
        self,
        *,
        total: int,
        model_limit: Callable[[str], int],
        backends: AdaptiveLimits,
        has_room: Callable[[], bool] = lambda: True,
        limits: SendLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the limiter of one process.

        Args:
            total: the number of permits over all models.
            model_limit: returns the limit of a model, which may change at any time.
            backends: the adaptive limits of the backends.
            has_room: returns False while there is no memory for another request. No permit is granted then.
                Slices do not check this themselves: the slice that frees memory would always take it again,
                and the other slices would get none.
            limits: caps and rates of tenants, API keys and models; None for no limits.
            clock: returns the current time in seconds.
        """
        self.clock, self._has_room = clock, has_room
        self.limits = limits or SendLimits()
        self._shares = self.limits.shares
        self.backends = backends
        self._total, self._used = total, 0
        self._model_limit = model_limit
        self._models: dict[str, _ModelPermits] = {}
        self._waiting: dict[str, _ModelPermits] = {}  # models with a waiting request
        self._capped: dict[str, list[_ModelPermits]] = {}  # by tenant: models that have its queue in `capped`
        self._grants = 0
        self._is_granting = False

    @property
    def used(self) -> int:
        """Permits in use, over all models."""
        return self._used

    def first_batches(self, model: str) -> Collection[tuple[str, str]]:
        """Return the tenant and id of each batch of the model that goes first in its tenant and priority.

        Tenants with only one batch of the model are left out.
        """
        return self._shares.ranks(model).first

    def used_by(self, model: str) -> int:
        return self._permits_of(model).used

    def limit_of(self, model: str) -> int:
        """Return how many permits the model may use at most, even if no other model uses any."""
        own, backends = self._limit(model), self.backends.limit_of_model(model)
        return own if backends is None else min(own, backends)

    def free(self, name: str) -> int:
        """Return how many more requests of the model `name` could be in flight now."""
        model = self._permits_of(name)
        return max(0, min(self.limit_of(name) - model.used, self._total - self._used))

    def granted(self, name: str) -> int:
        """Return how many permits the model has had so far."""
        return self._permits_of(name).grants

    def enqueue(self, request: PermitRequest) -> None:
        """Queue a request. Its permit is granted as soon as one is free, possibly before this returns."""
        model = self._models.get(request.model) or self._permits_of(request.model)
        queue = model.waiting.get(request.tenant)
        if queue is not None:
            queue.add(request, self.clock())
        elif (capped := model.capped.get(request.tenant)) is not None:
            capped.add(request, self.clock())
            self._retry_capped(model, request.tenant)
        else:
            queue = _Queue()
            queue.add(request, self.clock())
            self._wait(model, request.tenant, queue, request.weight)
        if not (self._is_granting and model.most):
            self._refresh(model)

    def others_wait(self, name: str, tenant: str) -> bool:
        """Return True if a slice of a tenant other than `tenant` waits for a permit of the model `name`.

        Slices that wait because of a cap or a rate do not count, because they would not get the next permit.
        """
        model, now = self._waiting.get(name), self.clock()
        return model is not None and any(
            waiting != tenant and not self.limits.tenant_limit(waiting, now) for waiting in model.waiting
        )

    def is_capped(self, name: str, tenant: str) -> bool:
        """Return True if a cap or a rate keeps the tenant's slices waiting although a permit is free."""
        model = self._models.get(name)
        return model is not None and tenant in model.capped

    def is_at_rate(self, name: str) -> bool:
        """Return True if no line of the model may be sent now, because of a rate of the model."""
        return self.limits.model_limit(name, self.clock()) is not None

    def limit_reached(self, name: str, tenant: str, key_id: str) -> Limit | None:
        """Return the limit because of which lines of a tenant or of an API key wait; None if there is none.

        Lines that wait only for a free permit have none.
        """
        model = self._models.get(name)
        if model is None:
            return None
        if (limit := model.capped_by.get(tenant)) is not None:
            return limit
        if tenant not in model.waiting:
            return None
        if key_id and self.limits.is_key_capped(key_id):
            return Limit.KEY_IN_FLIGHT
        return self.limits.model_limit(name, self.clock())

    def refresh(self, name: str) -> None:
        """Look up the limit and the backends of the model `name` again, and grant permits accordingly.

        Every waiting slice calls this from time to time, because the limiter is not notified when they
        change.
        """
        model = self._models.get(name)
        if model is not None and (model.waiting or model.capped):
            self._refresh(model)

    def cancel(self, request: PermitRequest) -> None:
        """Remove a request from the queue. Raises KeyError or ValueError if it is not in the queue."""
        model, tenant = self._permits_of(request.model), request.tenant
        queue = model.capped.get(tenant) or model.waiting[tenant]
        queue.remove(request)
        if queue.is_empty:
            self._stop_waiting(model, tenant)

    def release(self, permit: Permit) -> None:
        """Give a permit back, so that another request may be sent. A second call has no effect."""
        if permit.released:
            return
        permit.released = True
        self.backends.release(permit.placed)
        model, request, now = permit.of, permit.request, self.clock()
        model.used -= 1
        self._used -= 1
        model.shares.release(request.tenant, now, is_contended=bool(model.waiting))
        if permit.priorities is not None:
            permit.priorities.release(str(request.priority), now, is_contended=True)
        self.limits.end(request.tenant, request.key_id)
        if self._capped:
            for capped in list(self._capped.get(request.tenant, ())):
                self._retry_capped(capped, request.tenant)
        if model.waiting and now - model.refreshed_at >= _REFRESH_SECONDS:
            self._refresh(model)
        elif not self._is_granting:
            self._grant(now)

    def retain_only(self, models: Collection[str], urls: Collection[str]) -> None:
        """Forget the models not in `models` and the backends not in `urls`, except those still in use.

        A model is in use while it has permits or waiting requests, a backend while it has requests in flight.
        """
        for name, model in list(self._models.items()):
            if name not in models and not (model.used or model.waiting or model.capped):
                del self._models[name]
        self.backends.retain_only(urls)

    def _permits_of(self, name: str) -> _ModelPermits:
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = _ModelPermits(name)
        return found

    def _limit(self, name: str) -> int:
        # One permit is left for the other models: no model can hold all of them.
        return max(1, min(self._model_limit(name), self._total - 1))

    def _refresh(self, model: _ModelPermits) -> None:
        now = self.clock()
        model.most, model.urls = self._limit(model.name), self.backends.backends_of(model.name)
        model.ranks = self._shares.ranks(model.name)
        model.refreshed_at = now
        if now - model.weighed_at >= _SHARES_SECONDS:
            model.weighed_at = now
            model.shares.refresh(self._shares.weight, model.waiting, now)
            self._record_waits(model, now)
        for tenant in list(model.capped):
            self._retry_capped(model, tenant)
        if not self._is_granting:
            self._grant(now)

    def _grant(self, now: float) -> None:
        """Grant permits to waiting requests while permits are free.

        This is a loop and not a recursion, because a callback may enqueue its next request or release its
        permit at once.
        """
        self._is_granting = True
        try:
            while self._used < self._total and self._has_room():
                model = self._next_model(now)
                if model is None:
                    break
                self._grant_one(model, now)
        finally:
            self._is_granting = False

    def _record_waits(self, model: _ModelPermits, now: float) -> None:
        """Record for how long lines of the model have waited because of limits, since the last call."""
        seconds, model.sampled_at = now - model.sampled_at, now
        if seconds > _MAX_SAMPLE_SECONDS:
            return
        for tenant, limit in model.capped_by.items():
            self.limits.record_wait(limit, model.name, tenant, seconds)
        if model.waiting and (limit := self.limits.model_limit(model.name, now)) is not None:
            self.limits.record_wait(limit, model.name, "", seconds)

    def _next_model(self, now: float) -> _ModelPermits | None:
        """Return the model that gets the next permit; None if no waiting model may have one.

        The model that uses the fewest permits is next. If several use equally few, the one that has waited
        longest since its last grant is next. So no model waits forever, even if there are fewer permits than
        models.
        """
        found = full = free = None  # best model so far; backends just found to be full, or to have room
        for model in self._waiting.values():
            urls = model.urls
            if model.used >= model.most or (model.used and urls == full):
                continue
            if found is not None and (found.used < model.used or _is_before(found, model)):
                continue
            if urls == free or (urls != full and self.backends.has_room(urls)):
                free, model.full_since = urls, math.inf
            else:
                full, model.full_since = urls, min(model.full_since, now)
                if not self._is_starved(model, now):
                    continue
            if self.limits.model_limit(model.name, now) is not None:
                continue
            found = model
        return found

    def _is_starved(self, model: _ModelPermits, now: float) -> bool:
        """Return True if a model whose backends are full may send one request nevertheless.

        The backends may be full of requests of another model that never get a response.
        """
        return (
            not model.used
            and now - model.full_since >= _STARVED_SECONDS
            and not all(map(self.backends.has_used_share, model.urls))
        )

    def _grant_one(self, model: _ModelPermits, now: float) -> None:
        """Grant a permit to the next tenant, or set the tenant aside if a limit does not allow that."""
        tenant = model.shares.next_tenant(model.waiting, now)
        queue = model.waiting[tenant]
        limit = self.limits.tenant_limit(tenant, now)
        request = None if limit is not None else queue.pop(self.limits.is_key_capped, model.ranks, now)
        if request is None:
            self._stop_waiting(model, tenant)
            model.capped[tenant] = queue
            model.capped_by[tenant] = limit or Limit.KEY_IN_FLIGHT
            self._capped.setdefault(tenant, []).append(model)
            return
        model.shares.grant(tenant, self._shares.weight(tenant, request.weight), now)
        self.limits.start(tenant, request.key_id)
        self._grants += 1
        model.granted_at = self._grants
        model.used += 1
        model.grants += 1
        self._used += 1
        self.backends.unplaced += 1
        try:
            request.on_granted(Permit(self, model, request, queue.shares))
        finally:
            # After the callback, which usually waits for the next permit: the tenant has not stopped waiting.
            if queue.is_empty and model.waiting.get(tenant) is queue:
                self._stop_waiting(model, tenant)

    def _wait(self, model: _ModelPermits, tenant: str, queue: _Queue, weight: float) -> None:
        """Add a tenant to those that wait for permits of the model."""
        model.shares.start_waiting(tenant, weight, model.waiting, self.clock())
        model.waiting[tenant] = queue
        self._waiting[model.name] = model

    def _stop_waiting(self, model: _ModelPermits, tenant: str) -> None:
        """Remove the tenant's queue from the model, whether the tenant waits or is at a limit."""
        if model.capped.pop(tenant, None) is not None:
            del model.capped_by[tenant]
            self._capped[tenant].remove(model)
            if not self._capped[tenant]:
                del self._capped[tenant]
            return
        del model.waiting[tenant]
        if not model.waiting:
            del self._waiting[model.name]
            model.full_since = math.inf

    def _retry_capped(self, model: _ModelPermits, tenant: str) -> None:
        """Let a tenant that was at a limit wait for permits again if it is below the limit now.

        The tenant starts like any tenant that begins to wait. It gets no credit for the time at its limit.
        """
        queue = model.capped[tenant]
        limit = self.limits.tenant_limit(tenant, self.clock())
        if limit is not None:
            model.capped_by[tenant] = limit
            return
        weight = queue.next_weight(self.limits.is_key_capped)
        if weight is not None:
            self._stop_waiting(model, tenant)
            self._wait(model, tenant, queue, weight)
        else:
            model.capped_by[tenant] = Limit.KEY_IN_FLIGHT


def _is_before(model: _ModelPermits, other: _ModelPermits) -> bool:
    if model.used != other.used:
        return model.used < other.used
    return (model.granted_at, model.name) < (other.granted_at, other.name)
