"""Concurrency limits of one process: first per model, then over all models, shared fairly between tenants."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NoReturn

from msgspec import Struct

from batchwright.contracts.temporal_payloads.batch import DEFAULT_PRIORITY
from batchwright.inference.limits.adaptive_backend_limits import BackendLimits, PlacedRequest
from batchwright.inference.limits.model_permits import ModelPermits
from batchwright.inference.limits.tenant_and_model_limits import Charge, Limit, TenantAndModelLimits
from batchwright.inference.request_outcome import Outcome
from batchwright.rules.dispatch.fair_queue import FairQueue, FairShare
from batchwright.rules.dispatch.retry_policy import SUCCESS

_REFRESH_SECONDS = 0.02  # time after which a model's limit and backends are looked up again
_SHARES_SECONDS = 0.25  # time after which the weights of a model's tenants are looked up again


@dataclass(eq=False, slots=True)
class PermitRequest:
    """A slice's request for one permit. A slice is a part of a batch; a permit lets it send one line.

    Attributes:
        number: position of the slice among the slices of its model and batch.
        weight: the tenant's relative share of the capacity. `TenantSettings` may override the weight.
        key_id: id of the API key that created the batch; empty if the batch was created without a key.
        on_granted: called once with the permit. It must not raise.
        cost: returns a number for the next line. It is higher if a backend must first compute the line's
            system prompt (again), because its prefix cache lacks the prompt; 0 for no cost. If `cost` is
            None, the cost is always 0.
    """

    model: str
    tenant: str
    weight: float
    batch_id: str
    number: int
    on_granted: Callable[["Permit"], None]
    key_id: str = ""
    priority: int = DEFAULT_PRIORITY
    cost: Callable[[], float] | None = None

    def detach(self) -> None:
        """Drop the references to the callbacks, because they would keep a finished slice in memory."""
        self.on_granted, self.cost = _already_detached, None


def _already_detached(_permit: "Permit") -> NoReturn:
    raise AssertionError("a permit was granted to a request that had left the queue")


_Model = ModelPermits[PermitRequest]
_Queue = FairQueue[PermitRequest]


class Permit(Struct, eq=False):
    """The right to have one request in flight, until `release` is called.

    Call `place` when a backend is chosen for the request. Call `record_outcome` when the request has ended,
    because the outcome may change the backend's limit.
    """

    owner: "ConcurrencyLimiter"
    of: _Model
    request: PermitRequest
    priorities: FairShare | None = None  # shares of the tenant's priorities, updated at the release
    placed: PlacedRequest | None = None
    charged: Charge | None = None
    released: bool = False

    def place(self, url: str) -> None:
        """Count the request as in flight at the backend `url`. A second call moves the request to another
        backend.
        """
        self.placed = self.owner.backends.place(self.of.name, url, self.placed)

    def charge(self, line_bytes: int) -> None:
        """Count a sent request towards the limits per minute of its model and tenant.

        Args:
            line_bytes: length of the line, from which its tokens are estimated.
        """
        limits, request = self.owner.limits, self.request
        if limits.model_rates or limits.tenant_settings.rates:
            self.charged = limits.charge(request.model, request.tenant, line_bytes, self.owner.clock())

    def correct_charge(self, tokens: int) -> None:
        """Replace the token estimate of `charge` by the real number of tokens.

        Pass 0 if the backend refused the request.
        """
        if self.charged is not None:
            self.owner.limits.correct(self.charged, tokens)
            self.charged = None

    def may_send_again(self) -> bool:
        """Return True if the limits per minute of the model and the tenant allow one more request now."""
        return self.owner.limits.may_send(self.request.model, self.request.tenant, self.owner.clock())

    def record_outcome(self, outcome: Outcome) -> None:
        """Report how the request ended, so that its backend's limit can adapt. Call this before `release`."""
        if outcome.verdict is not SUCCESS:
            self.of.refreshed_at = -math.inf  # look up the backends again: a circuit may have opened
        if self.placed is not None:
            self.owner.backends.record_outcome(self.placed, outcome)

    def release(self) -> None:
        self.owner.release(self)


class ConcurrencyLimiter:
    """A limiter that grants permits to waiting slices (parts of batches), by model and backend limits.

    A permit is the right to have one request in flight. A slice waits for one permit at a time. The limit of
    a model is the lower of two limits: its own limit, and the sum of its backends' adaptive limits.

    The next permit goes to the model that uses the fewest permits. Within a model, `FairShare` selects the
    tenant by weight and time in flight. Within a tenant, `FairQueue` selects the priority and the batch.
    Tenants, API keys and models that have reached one of their `TenantAndModelLimits` are skipped.
    """

    def __init__(
        self,
        *,
        total: int,
        model_limit: Callable[[str], int],
        backends: BackendLimits,
        has_room: Callable[[], bool] = lambda: True,
        limits: TenantAndModelLimits | None = None,
    ) -> None:
        """Create the limiter of one process.

        Args:
            total: number of permits over all models.
            model_limit: returns the limit of a model, which may change at any time.
            backends: adaptive limits of the backends.
            has_room: returns False while there is no memory for another request. No permit is granted then.
            limits: caps and rates of tenants, API keys and models; None for no limits.
        """
        self.clock, self._has_room = backends.clock, has_room
        self.limits = limits or TenantAndModelLimits()
        self._tenant_settings = self.limits.tenant_settings
        self.backends, self._total, self._model_limit = backends, total, model_limit
        self.used = 0  # permits in use, over all models
        self._models: dict[str, _Model] = {}
        self._waiting: dict[str, _Model] = {}  # models with a waiting request
        self._capped: dict[str, list[_Model]] = {}  # by tenant: models that have its queue in `capped`
        self._grants = 0
        self._is_granting = False

    def used_by(self, model: str) -> int:
        return self._permits_of(model).used

    def limit_of(self, model: str) -> int:
        """Return how many requests to the model may be in flight if no other model has requests in flight."""
        own, backends = self._limit(model), self.backends.limit_of_model(model)
        return own if backends is None else min(own, backends)

    def free(self, name: str) -> int:
        """Return how many more requests to the model could be sent now."""
        model = self._permits_of(name)
        return max(0, min(self.limit_of(name) - model.used, self._total - self.used))

    def lowest_cost(self, name: str) -> float:
        """Return the lowest `PermitRequest.cost` of the model's waiting requests; 0 if none waits."""
        return min((queue.lowest_cost() for queue in self._permits_of(name).waiting.values()), default=0)

    def granted(self, name: str) -> int:
        """Return how many permits the model has got so far."""
        return self._permits_of(name).grants

    def enqueue(self, request: PermitRequest) -> None:
        """Add a slice's request for a permit to the requests that wait.

        As soon as a permit is free, `request.on_granted` is called with this permit, possibly before this
        method returns.
        """
        model, tenant = self._models.get(request.model) or self._permits_of(request.model), request.tenant
        known = model.waiting.get(tenant) or model.capped.get(tenant)
        queue = known or _Queue()
        queue.add(request, self.clock())
        if known is None:
            self._start_waiting(model, tenant, queue, request.weight)
        elif tenant in model.capped:
            self._retry_capped(model, tenant)
        if not (self._is_granting and model.max_permits):
            self._refresh(model)

    def others_wait(self, name: str, tenant: str) -> bool:
        """Return True if a slice of another tenant waits for a permit to send to the model.

        A tenant that has reached a limit of its own does not count, because it would not get the next permit.
        """
        model = self._waiting.get(name)
        return model is not None and model.others_wait(self.limits, tenant, self.clock())

    def is_capped(self, name: str, tenant: str) -> bool:
        """Return True if a limit of the tenant or of its keys makes the tenant's lines for the model wait."""
        model = self._models.get(name)
        return model is not None and tenant in model.capped

    def is_model_limited(self, name: str) -> bool:
        """Return True if the model's rate is used up, or if an operator has stopped the model."""
        return self.limits.model_limit(name, self.clock()) is not None

    def limit_reached(self, name: str, tenant: str, key_id: str) -> Limit | None:
        """Return the limit that makes lines of the tenant or the API key wait.

        Return None if no limit is reached. Lines that wait only for a free permit have reached no limit.
        """
        model = self._models.get(name)
        return None if model is None else model.limit_reached(self.limits, tenant, key_id, self.clock())

    def refresh(self, name: str) -> None:
        """Read the limit and the backends of the model again, and grant the permits that are possible now.

        Every waiting slice calls this from time to time, because nothing notifies the limiter when limits
        change.
        """
        model = self._models.get(name)
        if model is not None and (model.waiting or model.capped):
            self._refresh(model)

    def cancel(self, request: PermitRequest) -> None:
        """Remove a request that waits for a permit. Raise KeyError or ValueError if it does not wait."""
        model, tenant = self._permits_of(request.model), request.tenant
        queue = model.capped.get(tenant) or model.waiting[tenant]
        queue.remove(request)
        if not queue.waiting:
            self._stop_waiting(model, tenant)

    def release(self, permit: Permit) -> None:
        """Give a permit back, so that another request may be sent. A second call has no effect."""
        if permit.released:
            return
        permit.released = True
        self.backends.release(permit.placed)
        model, request, now = permit.of, permit.request, self.clock()
        model.used -= 1
        self.used -= 1
        model.shares.release(request.tenant, now, is_contended=bool(model.waiting))
        if permit.priorities is not None:
            permit.priorities.release(str(request.priority), now, is_contended=True)
        self.limits.of_tenants[request.tenant] -= 1
        if request.key_id:
            self.limits.of_keys[request.key_id] -= 1
        if self._capped:
            for capped in list(self._capped.get(request.tenant, ())):
                self._retry_capped(capped, request.tenant)
        if model.waiting and now - model.refreshed_at >= _REFRESH_SECONDS:
            self._refresh(model)
        elif not self._is_granting:
            self._grant(now)

    def retain_only(self, models: Collection[str], urls: Collection[str]) -> None:
        """Drop the stored counts of models that are not in `models`, and of backends that are not in `urls`.

        Models with permits or waiting requests stay, and so do backends with requests in flight.
        """
        for name, model in list(self._models.items()):
            if name not in models and not (model.used or model.waiting or model.capped):
                del self._models[name]
        self.backends.retain_only(urls)
        self.limits.forget_idle()

    def _permits_of(self, name: str) -> _Model:
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = _Model(name)
        return found

    def _limit(self, name: str) -> int:
        # One permit is left for the other models, so that no model can hold all permits.
        return max(1, min(self._model_limit(name), self._total - 1))

    def _refresh(self, model: _Model) -> None:
        now = self.clock()
        model.max_permits, model.urls = self._limit(model.name), self.backends.backends_of(model.name)
        model.ranks = self._tenant_settings.ranks(model.name)
        model.refreshed_at = now
        if now - model.weighed_at >= _SHARES_SECONDS:
            model.weighed_at = now
            model.shares.refresh(self._tenant_settings.weights, model.waiting, now)
            model.record_waits(self.limits, now)
            self.backends.search_free_slots(model.urls)
        for tenant in list(model.capped):
            self._retry_capped(model, tenant)
        if not self._is_granting:
            self._grant(now)

    def _grant(self, now: float) -> None:
        """Grant permits to waiting slices, until a limit on requests in flight is reached or memory is short.

        While this loop runs, the callback `on_granted` may call `enqueue` or `release`. These calls start no
        second loop. This loop also grants the permits that these calls make possible.
        """
        self._is_granting = True
        try:
            while self.used < self._total and self._has_room():
                model = self._next_model(now)
                if model is None:
                    break
                self._grant_one(model, now)
        finally:
            self._is_granting = False

    def _next_model(self, now: float) -> _Model | None:
        """Return the model that gets the next permit; None if no model may get one.

        It is the model with the fewest permits in use. If several models have the same number, it is the
        model whose last permit is the oldest. As a result, no model waits forever, even if there are fewer
        permits than models.
        """
        found = full = free = None  # best model so far; backends that are full; backends that have room
        first, rates, held = (0, 0, ""), self.limits.model_rates, self._tenant_settings.held_models
        for model in self._waiting.values():
            urls = model.urls
            if model.used >= model.max_permits or (model.used and urls == full):
                continue
            place = model.used, model.last_grant, model.name
            if found is not None and first < place:
                continue
            if urls == free or (urls != full and self.backends.has_room(urls)):
                free, model.full_since = urls, math.inf
            else:
                full, model.full_since = urls, min(model.full_since, now)
                if model.used or not model.is_starved(self.backends, now):
                    continue
            is_limited = model.name in rates or model.name in held
            if is_limited and self.limits.model_limit(model.name, now) is not None:
                continue
            found, first = model, place
        return found

    def _grant_one(self, model: _Model, now: float) -> None:
        """Grant one permit for this model to the tenant that `FairShare` selects.

        If the tenant has reached a limit, grant nothing, and move its requests from `waiting` to `capped`.
        """
        tenant = model.shares.next_tenant(model.waiting, now)
        queue = model.waiting[tenant]
        settings, limits, limit, is_capped = self._tenant_settings, self.limits, None, None
        if tenant in settings.max_in_flight or tenant in settings.rates or tenant in settings.held_tenants:
            limit = limits.tenant_limit(tenant, now)
        if settings.key_max_in_flight:
            is_capped = limits.is_key_capped
        request = None if limit is not None else queue.pop(is_capped, model.ranks, now)
        if request is None:
            self._stop_waiting(model, tenant)
            model.capped[tenant], model.capped_by[tenant] = queue, limit or Limit.KEY_IN_FLIGHT
            self._capped.setdefault(tenant, []).append(model)
            return
        model.shares.grant(tenant, settings.weights.get(tenant, request.weight), now)
        limits.of_tenants[tenant] += 1
        if request.key_id:
            limits.of_keys[request.key_id] += 1
        self._grants += 1
        model.last_grant = self._grants
        model.used += 1
        model.grants += 1
        self.used += 1
        self.backends.unplaced += 1
        try:
            request.on_granted(Permit(self, model, request, queue.shares))
        finally:
            # Checked after the callback, which usually requests the next permit for the same tenant.
            if not queue.waiting and model.waiting.get(tenant) is queue:
                self._stop_waiting(model, tenant)

    def _start_waiting(self, model: _Model, tenant: str, queue: _Queue, weight: float) -> None:
        model.shares.start_waiting(tenant, weight, model.waiting, self.clock())
        model.waiting[tenant] = queue
        self._waiting[model.name] = model

    def _stop_waiting(self, model: _Model, tenant: str) -> None:
        """Remove the tenant's requests from `model.capped`, or from `model.waiting` if they are there."""
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

    def _retry_capped(self, model: _Model, tenant: str) -> None:
        """Move a tenant's requests from `capped` to `waiting` if no limit stops its lines any longer.

        In `waiting`, the tenant is treated like a tenant that begins to wait. The time in `capped` gives the
        tenant no advantage over other tenants.
        """
        queue, now = model.capped[tenant], self.clock()
        if (weight := model.next_weight(self.limits, tenant, now)) is not None:
            self._stop_waiting(model, tenant)
            self._start_waiting(model, tenant, queue, weight)
