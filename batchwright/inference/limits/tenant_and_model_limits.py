"""Limits that one process checks before it sends a line: caps on requests in flight, and rates per minute.

If a tenant, an API key or a model has reached a limit, only the lines of this tenant, key or model wait.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from batchwright.rules.dispatch.batch_ranking import BatchRanks, BatchSchedule
from batchwright.rules.limits.per_minute_limit import PerMinuteLimit

_BYTES_PER_TOKEN = 4  # estimate for the text of a line
_FIRST_OUTPUT_TOKENS = 256.0  # estimated tokens of a response, until the first one has arrived
_NEWEST_SHARE = 0.1  # weight of the newest response in the average
_MAX_AVERAGES = 10_000


class Limit(StrEnum):
    """The kind of a limit that makes lines wait. The limit on all requests in flight is not included.

    A hold means that an operator has stopped a tenant or a model. A metric uses the values as a label.
    """

    TENANT_HOLD = "tenant_hold"
    MODEL_HOLD = "model_hold"
    TENANT_IN_FLIGHT = "tenant_max_in_flight"
    KEY_IN_FLIGHT = "key_max_in_flight"
    TENANT_REQUESTS = "tenant_requests_per_minute"
    TENANT_TOKENS = "tenant_tokens_per_minute"
    MODEL_REQUESTS = "model_requests_per_minute"
    MODEL_TOKENS = "model_tokens_per_minute"

    @property
    def of_tenant(self) -> bool:
        """True for a limit of a tenant or of its API key, False for a limit of the model."""
        return self not in (Limit.MODEL_REQUESTS, Limit.MODEL_TOKENS, Limit.MODEL_HOLD)

    @property
    def is_hold(self) -> bool:
        """True if an operator has stopped the tenant or the model. Only an operator can then end the wait."""
        return self in (Limit.TENANT_HOLD, Limit.MODEL_HOLD)


class FleetRate(NamedTuple):
    """A limit on the requests or tokens per minute of all workers together.

    `total` is the whole limit. `part` is the number per minute that this process may use.
    """

    total: int
    part: float


class Rates(NamedTuple):
    """Limits on the requests and tokens per minute of one tenant or one model. None means no limit."""

    requests: FleetRate | None = None
    tokens: FleetRate | None = None


NO_RATES = Rates()


class TenantSettings:
    """The weights, caps and rates of tenants, the holds, and the order in which batches send their lines.

    Until settings are read, each tenant has the weight of its batches, and there are no limits.

    When a weight, cap, rate or hold changes, its attribute gets a new value. Callers must therefore read the
    attribute again before each request. A tenant or API key that is not in a mapping has no such setting.

    Attributes:
        weights: how much of the capacity each tenant gets, relative to other tenants. A missing tenant has
            the weight of its batches.
        max_in_flight: how many requests of each tenant this process may have in flight, over all models.
        key_max_in_flight: how many requests this process may have in flight for each API key, over all
            batches created with the key.
        rates: requests and tokens per minute that this process may send for each tenant, over all models.
        held_tenants: tenants whose lines are not sent, because an operator has stopped them.
        held_models: models whose lines are not sent, because an operator has stopped them.
        schedule: order in which a tenant's batches of equal priority send their lines.
    """

    def __init__(self) -> None:
        self.weights: Mapping[str, float] = {}
        self.max_in_flight: Mapping[str, int] = {}
        self.key_max_in_flight: Mapping[str, int] = {}
        self.rates: Mapping[str, Rates] = {}
        self.held_tenants: Set[str] = frozenset()
        self.held_models: Set[str] = frozenset()
        self.schedule = BatchSchedule()

    def is_held(self, tenant: str, model: str) -> bool:
        """Return True if an operator has stopped the sending for the tenant or for the model."""
        return tenant in self.held_tenants or model in self.held_models

    def ranks(self, model: str) -> BatchRanks:
        """Return the ranks of the batches that have lines for the model.

        Ranks say in which order batches of the same tenant and priority send their lines.
        """
        return self.schedule.ranks(model)


@dataclass(slots=True, eq=False)
class _Buckets:
    """Counters for the rates per minute of one tenant or one model.

    Attributes:
        rates: maximum number of requests and of tokens per minute.
        requests: how many requests may be sent now; None if their number has no limit.
        tokens: how many tokens may be sent now; None if their number has no limit.
    """

    rates: Rates = NO_RATES
    requests: PerMinuteLimit | None = None
    tokens: PerMinuteLimit | None = None

    def update(self, rates: Rates, now: float) -> None:
        self.rates = rates
        self.requests = _updated(self.requests, rates.requests, now)
        self.tokens = _updated(self.tokens, rates.tokens, now)


class Charge(NamedTuple):
    """The record of one request and its tokens in the rate counters of its tenant and its model.

    When the used tokens are known, `TenantAndModelLimits.correct` adjusts the counters.

    Attributes:
        line_bytes: length of the request's line.
        of_tenant: the counters of the tenant; None if the tenant has no rate limit.
        of_model: the counters of the model; None if the model has no rate limit.
        tokens: estimated tokens that were counted for the tenant.
        model_tokens: estimated tokens that were counted for the model.
    """

    model: str
    tenant: str
    line_bytes: int
    of_tenant: _Buckets | None
    of_model: _Buckets | None
    tokens: float
    model_tokens: float


class TenantAndModelLimits:
    """The caps on requests in flight and the rates per minute in one process, with counts of their usage.

    When a request is sent, the rates are charged with one request and an estimate of its tokens. The estimate
    is corrected when the response shows how many tokens were used.

    Most tenants, keys and models have no limit. To save time, callers first look into `tenant_settings` and
    `model_rates`. They call a check only if a limit is set there.

    Attributes:
        tenant_settings: weights (shares of the capacity), caps and rates of tenants.
        model_rates: requests and tokens per minute for each model. A missing model has no limit.
        of_tenants: number of requests in flight by tenant, over all models. `ConcurrencyLimiter` updates it.
        of_keys: number of requests in flight by API key. `ConcurrencyLimiter` updates it.
    """

    def __init__(
        self,
        tenant_settings: TenantSettings | None = None,
        record_wait: Callable[[Limit, str, str, float], None] = lambda limit, model, tenant, seconds: None,
    ) -> None:
        """Create the limits of a process that has no request in flight.

        Args:
            tenant_settings: weights, caps and rates of tenants. If None, no tenant has a limit, and each
                tenant has the weight of its batches.
            record_wait: called with a limit, a model, a tenant, and the seconds for which lines waited
                because of the limit. For a limit of the model, the tenant is empty.
        """
        self.tenant_settings = tenant_settings or TenantSettings()
        self.record_wait = record_wait
        self.model_rates: Mapping[str, Rates] = {}
        self.of_tenants: defaultdict[str, int] = defaultdict(int)
        self.of_keys: defaultdict[str, int] = defaultdict(int)
        self._tenants: dict[str, _Buckets] = {}  # only those with a rate
        self._models: dict[str, _Buckets] = {}  # only those with a rate
        # By model and tenant: average of the used tokens minus the estimated tokens of the line.
        self._further_tokens: dict[tuple[str, str], float] = {}

    def forget_idle(self) -> None:
        """Remove tenants and keys that have no request in flight from `of_tenants` and `of_keys`."""
        for counts in (self.of_tenants, self.of_keys):
            for name in [name for name, in_flight in counts.items() if not in_flight]:
                del counts[name]

    # Checks

    def tenant_limit(self, tenant: str, now: float) -> Limit | None:
        """Return the limit of the tenant that forbids a request now; None if none forbids it.

        The cap on requests in flight, the rates per minute, and a hold are checked. A hold means that an
        operator has stopped the tenant.
        """
        most = self.tenant_settings.max_in_flight.get(tenant)
        if most is not None and self.of_tenants[tenant] >= most:
            return Limit.TENANT_IN_FLIGHT
        return self.tenant_rate(tenant, now)

    def tenant_rate(self, tenant: str, now: float) -> Limit | None:
        """Return the hold or rate of the tenant that forbids a request now; None if none forbids it.

        A hold means that an operator has stopped the tenant. The tenant's cap on requests in flight is not
        checked.
        """
        if tenant in self.tenant_settings.held_tenants:
            return Limit.TENANT_HOLD
        buckets = _current(self._tenants, tenant, self.tenant_settings.rates.get(tenant, NO_RATES), now)
        return buckets and _used_up(buckets, now, Limit.TENANT_REQUESTS, Limit.TENANT_TOKENS)

    def model_limit(self, model: str, now: float) -> Limit | None:
        """Return the hold or rate of the model that forbids a request now; None if none forbids it.

        A hold means that an operator has stopped the model.
        """
        if model in self.tenant_settings.held_models:
            return Limit.MODEL_HOLD
        buckets = _current(self._models, model, self.model_rates.get(model, NO_RATES), now)
        return buckets and _used_up(buckets, now, Limit.MODEL_REQUESTS, Limit.MODEL_TOKENS)

    def may_send(self, model: str, tenant: str, now: float) -> bool:
        """Return True if no rate or hold of the model or the tenant forbids one more request now.

        A hold means that an operator has stopped the model or tenant. Caps on requests in flight are not
        checked.
        """
        return not (self.model_limit(model, now) or self.tenant_rate(tenant, now))

    def is_key_capped(self, key_id: str) -> bool:
        """Return True if the API key has reached its cap on requests in flight."""
        most = self.tenant_settings.key_max_in_flight.get(key_id)
        return most is not None and self.of_keys[key_id] >= most

    def reason(self, limit: Limit, model: str, tenant: str) -> str:
        """Return why lines wait, such as "limited by the tenant's rate of 600 requests per minute".

        The text continues a sentence that begins with the model.

        Args:
            limit: the cap or rate that makes the lines wait. It must not be a hold (an operator's stop),
                because other code reports holds.
        """
        match limit:
            case Limit.TENANT_IN_FLIGHT:
                return "the tenant has as many requests in flight as its `max_in_flight` allows"
            case Limit.KEY_IN_FLIGHT:
                return "the API key has as many requests in flight as its `max_in_flight` allows"
            case _:
                owner = "tenant" if limit.of_tenant else "model"
                rates = (
                    self.tenant_settings.rates.get(tenant) if limit.of_tenant else self.model_rates.get(model)
                )
                rates = rates or NO_RATES
                if limit in (Limit.TENANT_REQUESTS, Limit.MODEL_REQUESTS):
                    what, rate = "requests", rates.requests
                else:
                    what, rate = "tokens", rates.tokens
                return f"limited by the {owner}'s rate of {rate.total if rate else 0:,} {what} per minute"

    # Charges

    def charge(
        self, model: str, tenant: str, line_bytes: int, now: float, max_model_tokens: float = math.inf
    ) -> Charge | None:
        """Count a request and its estimated tokens towards the limits per minute of its model and tenant.

        Return what was counted; None if neither the model nor the tenant has such a limit.

        Args:
            line_bytes: length of the line, from which its tokens are estimated.
            now: the current time in seconds.
            max_model_tokens: greatest number of estimated tokens to count towards the model's limit.
        """
        of_tenant = _current(self._tenants, tenant, self.tenant_settings.rates.get(tenant, NO_RATES), now)
        of_model = _current(self._models, model, self.model_rates.get(model, NO_RATES), now)
        if of_tenant is None and of_model is None:
            return None
        further = self._further_tokens.get((model, tenant), _FIRST_OUTPUT_TOKENS)
        tokens = max(1.0, line_bytes / _BYTES_PER_TOKEN + further)
        charge = Charge(model, tenant, line_bytes, of_tenant, of_model, tokens, min(tokens, max_model_tokens))
        _take(charge, 1, charge.tokens, charge.model_tokens)
        return charge

    def give_back(self, charge: Charge) -> None:
        """Undo what `charge` has counted for a request, because the request was not sent."""
        _take(charge, -1, -charge.tokens, -charge.model_tokens)

    def correct(self, charge: Charge, used: int, max_model_tokens: float | None = None) -> None:
        """Replace the estimated tokens that `charge` has counted by the tokens that the request has used.

        If the backend has reported `used`, and `used` is not 0, also adjust the average from which later
        requests of the model and tenant are estimated. An estimate has two parts: one token per four bytes of
        the line, and the average number of further tokens, such as output.

        Args:
            charge: the result of the method `charge`.
            used: number of tokens that the request has used; 0 if the backend refused the request.
            max_model_tokens: None if the backend has reported `used`. If `used` is only an estimate, the
                greatest number of tokens to count towards the model's limit.
        """
        of_model = used if max_model_tokens is None else min(used, max_model_tokens)
        _take(charge, 0, used - charge.tokens, of_model - charge.model_tokens)
        if not used or max_model_tokens is not None:
            return
        if len(self._further_tokens) >= _MAX_AVERAGES:
            self._further_tokens.clear()
        key, further = (charge.model, charge.tenant), used - charge.line_bytes / _BYTES_PER_TOKEN
        before = self._further_tokens.get(key, further)
        self._further_tokens[key] = before + _NEWEST_SHARE * (further - before)


def _take(charge: Charge, requests: int, tokens: float, model_tokens: float) -> None:
    for buckets, its_tokens in ((charge.of_tenant, tokens), (charge.of_model, model_tokens)):
        if buckets is not None:
            if buckets.requests is not None:
                buckets.requests.charge(requests)
            if buckets.tokens is not None:
                buckets.tokens.charge(its_tokens)


def _current(known: dict[str, _Buckets], name: str, rates: Rates, now: float) -> _Buckets | None:
    """Return the rate counters of a tenant or model, adapted to its present rates.

    If `rates` has no limit, remove the counters from `known` and return None. If `known` has no counters for
    `name`, create them there.

    Args:
        known: the counters by name of the tenant or model.
        name: the tenant or the model.
        rates: the present rates of this tenant or model.
        now: the current time in seconds.
    """
    buckets = known.get(name)
    if buckets is not None and buckets.rates is rates:
        return buckets
    if rates == NO_RATES:
        known.pop(name, None)
        return None
    if buckets is None:
        buckets = known[name] = _Buckets()
    if buckets.rates == rates:
        buckets.rates = rates
    else:
        buckets.update(rates, now)
    return buckets


def _updated(bucket: PerMinuteLimit | None, rate: FleetRate | None, now: float) -> PerMinuteLimit | None:
    if rate is None:
        return None
    if bucket is None:
        return PerMinuteLimit(rate.part, now)
    bucket.change(rate.part, now)
    return bucket


def _used_up(buckets: _Buckets, now: float, requests: Limit, tokens: Limit) -> Limit | None:
    if buckets.requests is not None and not buckets.requests.may_send(now):
        return requests
    return tokens if buckets.tokens is not None and not buckets.tokens.may_send(now) else None
