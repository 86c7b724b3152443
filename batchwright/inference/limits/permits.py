"""Permits, each of which is the right to have one request in flight, and the requests for them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from msgspec import Struct

from batchwright.contracts.temporal_payloads.batch import DEFAULT_PRIORITY
from batchwright.inference.limits.adaptive_backend_limits import BackendLimits, PlacedRequest
from batchwright.inference.limits.model_permits import ModelPermits
from batchwright.inference.limits.tenant_and_model_limits import Charge, TenantAndModelLimits
from batchwright.inference.request_outcome import Outcome
from batchwright.rules.dispatch.fair_queue import FairShare
from batchwright.rules.dispatch.retry_policy import SUCCESS


@dataclass(eq=False, slots=True)
class PermitRequest:
    """A slice's request for one permit. A slice is a part of a batch; a permit lets it send one line.

    Attributes:
        number: number of the slice among the slices of its model and batch.
        weight: weight of the tenant relative to other tenants; `TenantShares` may override it.
        key_id: id of the API key that created the batch; empty if the batch was created without a key.
        on_granted: called once with the permit. It must not raise.
        must_yield: returns True if another waiting slice of the batch should get the next permit instead.
    """

    model: str
    tenant: str
    weight: float
    batch_id: str
    number: int
    on_granted: Callable[["Permit"], None]
    key_id: str = ""
    priority: int = DEFAULT_PRIORITY
    must_yield: Callable[[], bool] | None = None

    def detach(self) -> None:
        """Drop the references to the callbacks, because they would keep a finished slice (part of a batch) in
        memory.
        """
        self.on_granted, self.must_yield = _already_detached, None


def _already_detached(_permit: "Permit") -> NoReturn:
    raise AssertionError("a permit was granted to a request that had left the queue")


class PermitOwner(Protocol):
    """The limiter that has granted a permit."""

    limits: TenantAndModelLimits
    backends: BackendLimits
    clock: Callable[[], float]

    def release(self, permit: "Permit") -> None: ...


class Permit(Struct, eq=False):
    """The right to have one request in flight, until `release` is called.

    Call `place` when a backend is chosen for the request. Call `record_outcome` when the request has ended,
    because the outcome may change the backend's limit.
    """

    owner: PermitOwner
    of: ModelPermits[PermitRequest]
    request: PermitRequest
    priorities: FairShare | None = None  # shares of the tenant's priorities, updated at the release
    placed: PlacedRequest | None = None
    charged: Charge | None = None
    released: bool = False

    def place(self, url: str) -> None:
        """Count the request as in flight at the backend `url`. A second call moves it to another backend."""
        self.placed = self.owner.backends.place(self.of.name, url, self.placed)

    def charge(self, line_bytes: int) -> None:
        """Count a sent request against the rates of its model and tenant.

        Args:
            line_bytes: length of the line, from which its tokens are estimated.
        """
        limits, request = self.owner.limits, self.request
        if limits.model_rates or limits.shares.rates:
            self.charged = limits.charge(request.model, request.tenant, line_bytes, self.owner.clock())

    def correct_charge(self, tokens: int) -> None:
        """Replace the token estimate of `charge` by the real number of tokens.

        Pass 0 if the backend refused the request.
        """
        if self.charged is not None:
            self.owner.limits.correct(self.charged, tokens)
            self.charged = None

    def may_send_again(self) -> bool:
        """Return True if the rates of the model and the tenant allow one more request now."""
        return self.owner.limits.may_send(self.request.model, self.request.tenant, self.owner.clock())

    def record_outcome(self, outcome: Outcome) -> None:
        """Report how the request ended, because this may change its backend's limit.

        Call this before `release`.
        """
        if outcome.verdict is not SUCCESS:
            self.of.refreshed_at = -math.inf  # look up the backends again: a circuit may have opened
        if self.placed is not None:
            self.owner.backends.record_outcome(self.placed, outcome)

    def release(self) -> None:
        self.owner.release(self)
