"""Counts the permits (rights to have a request in flight) of one model, and stores which tenants wait."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic

from batchwright.inference.limits.adaptive_backend_limits import BackendLimits
from batchwright.inference.limits.tenant_and_model_limits import Limit, TenantAndModelLimits
from batchwright.rules.dispatch.batch_ranking import BatchRanks
from batchwright.rules.dispatch.fair_queue import FairQueue, FairShare, Request

_STARVED_SECONDS = 10.0  # after so long, a model with full backends may still send one request
_MAX_SAMPLE_SECONDS = 1.0  # a longer time between two samples does not count as a wait


@dataclass(slots=True, eq=False)
class ModelPermits(Generic[Request]):
    """Permits (rights to have a request in flight) of one model, and the tenants that wait for them.

    All times are seconds of the clock of the `ConcurrencyLimiter`.

    Attributes:
        used: number of permits in use.
        grants: number of permits that were granted so far.
        last_grant: sequence number of the model's newest permit; 0 if the model has got no permit yet. The
            permits of all models together are numbered from 1, in the order in which they were granted.
        max_permits: greatest number of permits that the model may use.
        urls: URLs of the model's backends.
        ranks: the order in which each tenant's batches send their lines.
        refreshed_at: when `max_permits`, `urls` and `ranks` were last looked up.
        weighed_at: when the weights (shares of the capacity) of the tenants were last looked up.
        waiting: the waiting requests of the tenants that may get a permit, by tenant.
        capped: the waiting requests of the tenants that have reached a limit, by tenant. These tenants may
            send nothing now.
        capped_by: the limit that each tenant in `capped` has reached, by tenant.
        full_since: when the model's backends became full; infinity if they are not full.
        sampled_at: time of the last call of `record_waits`.
    """

    name: str
    used: int = 0
    grants: int = 0
    last_grant: int = 0
    max_permits: int = 0
    urls: Collection[str] = ()
    ranks: BatchRanks = field(default_factory=BatchRanks)
    refreshed_at: float = -math.inf
    weighed_at: float = -math.inf
    shares: FairShare = field(default_factory=FairShare)
    waiting: dict[str, FairQueue[Request]] = field(default_factory=dict[str, FairQueue[Request]])  # by tenant
    capped: dict[str, FairQueue[Request]] = field(default_factory=dict[str, FairQueue[Request]])  # by tenant
    capped_by: dict[str, Limit] = field(default_factory=dict[str, Limit])  # by tenant, as in `capped`
    full_since: float = math.inf
    sampled_at: float = -math.inf

    def others_wait(self, limits: TenantAndModelLimits, tenant: str, now: float) -> bool:
        """Return True if another tenant waits to send a request, and has not reached a limit."""
        return any(waiting != tenant and not limits.tenant_limit(waiting, now) for waiting in self.waiting)

    def next_weight(self, limits: TenantAndModelLimits, tenant: str, now: float) -> float | None:
        """Return the weight (share of the capacity) of a tenant in `capped` if the tenant may send again.

        In two cases, store the limit that stops the tenant in `capped_by`, and return None:

        - The tenant is still at a limit.
        - The API keys of all its waiting requests are at their limits on requests in flight.
        """
        limit = limits.tenant_limit(tenant, now)
        weight = None if limit is not None else self.capped[tenant].next_weight(limits.is_key_capped)
        if weight is None:
            self.capped_by[tenant] = limit or Limit.KEY_IN_FLIGHT
        return weight

    def is_starved(self, backends: BackendLimits, now: float) -> bool:
        """Return True if the model may send one request although its backends are full.

        Call this only if the model has no request in flight. The result is True if both conditions are met:

        - The backends have been full for ten seconds.
        - At least one backend has no fleet-wide limit (a limit that all processes share), or this process has
          not used up its part of the fleet-wide limit.

        Without this rule, the model could wait forever while other models keep its backends full with
        requests that never get a response.
        """
        is_long = now - self.full_since >= _STARVED_SECONDS
        return is_long and not all(map(backends.has_used_share, self.urls))

    def limit_reached(
        self, limits: TenantAndModelLimits, tenant: str, key_id: str, now: float
    ) -> Limit | None:
        """Return the limit that makes lines of the tenant or the API key wait; None if no limit does."""
        if (limit := self.capped_by.get(tenant)) is not None:
            return limit
        if tenant not in self.waiting:
            return None
        if key_id and limits.is_key_capped(key_id):
            return Limit.KEY_IN_FLIGHT
        return limits.model_limit(self.name, now)

    def record_waits(self, limits: TenantAndModelLimits, now: float) -> None:
        """Add the time since the last call to the metrics of the limits that make lines of the model wait.

        If the last call was more than a second ago, add nothing, because the lines may have waited for only a
        part of this time.
        """
        seconds, self.sampled_at = now - self.sampled_at, now
        if seconds > _MAX_SAMPLE_SECONDS:
            return
        for tenant, limit in self.capped_by.items():
            limits.record_wait(limit, self.name, tenant, seconds)
        if self.waiting and (limit := limits.model_limit(self.name, now)) is not None:
            limits.record_wait(limit, self.name, "", seconds)
