"""Decides whether interactive calls (requests that are sent immediately, without a batch) may be sent: checks
permissions, budgets, holds and limits per minute.

A budget is a maximum of tokens or cost per day. A hold is an operator's order to send no calls of a tenant or
a model.
"""

import math
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from batchwright.activities.services.daily_budgets import DailyBudgets
from batchwright.api.dependencies import ApiDependencies, ModelRouters
from batchwright.api.errors import RETRY_AFTER_SECONDS, ApiError, budget_used_up, model_not_found
from batchwright.api.read_cache import CoalescingCache
from batchwright.api.services.calls.backend_answer import CallCharge, InteractiveCall
from batchwright.api.services.calls.interactive_load import InteractiveRates
from batchwright.contracts.terms import HoldKind
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import InteractiveRate
from batchwright.database.tables.tenants.quota_records import TenantQuotas
from batchwright.inference.limits.tenant_and_model_limits import (
    NO_RATES,
    FleetRate,
    Limit,
    Rates,
    TenantAndModelLimits,
    TenantSettings,
)
from batchwright.inference.router import ModelRouter
from batchwright.rules.limits.interactive_reserve import interactive_share
from batchwright.rules.worker_stats import INTERACTIVE_AGE

_ALL = ""  # key of the permissions, which are read for all tenants together
_HOLD_MESSAGES = {
    Limit.TENANT_HOLD: "An operator holds your tenant: its calls are not sent until the hold is released.",
    Limit.MODEL_HOLD: "An operator holds the model '{model}': its calls are not sent until the hold is "
    "released.",
}
# An estimate takes at most what the rate of the model allows in so many seconds: a tenant who sends large
# requests and leaves could otherwise stop the calls of all others for minutes.
_MOST_ESTIMATED_SECONDS = 5.0
_RATE_RETRY_SECONDS = 1  # a rate allows the next call after a moment


class InteractiveAuthorizer:
    """The object that checks whether interactive calls (requests without a batch) of this process may be
    sent. It applies permissions, budgets, holds and limits per minute.

    A budget is a maximum of tokens or cost per day. A hold is an operator's order to send no calls of a
    tenant or a model. All these rules are read from the database at most once a second.

    Attributes:
        rates: counts the requests and tokens of these calls, for the limits per minute.
    """

    def __init__(
        self, deps: ApiDependencies, routers: ModelRouters, budgets: DailyBudgets, process: str
    ) -> None:
        """Create the authorizer of one process.

        Args:
            process: name under which this process stores its requests and tokens per minute in the database.
        """
        self._deps, self._routers, self._budgets, self._process = deps, routers, budgets, process
        self._permissions = CoalescingCache(self._read_permissions, deps.recent_seconds)
        self.rates = InteractiveRates()
        self._others: dict[tuple[bool, str], InteractiveRate] = {}  # used by other processes
        self._tenant_settings, self._model_rates = TenantSettings(), dict[str, Rates]()
        self._limits = TenantAndModelLimits(self._tenant_settings)
        self._limits.model_rates = self._model_rates

    async def authorize(self, call: InteractiveCall, model: str) -> ModelRouter:
        """Check that a call may be sent, and return the router of its model. Limits per minute are not
        checked.

        Raises:
            ApiError: the tenant may not use the model, or no backend serves it (404). All backends of the
                model run jobs, whose answers come too late for an open connection (400). A budget is used up
                (429). An operator has stopped the calls of the tenant or the model (503).
            DatabaseUnavailable: the permissions cannot be read.
        """
        await self._deps.models.served()  # reads the models if this is the first call of the process
        own = (await self._permissions.get(_ALL)).get(call.tenant)
        router = self._routers.router_for(model)
        if router is None or (own is not None and not own.may_use(model)):
            raise model_not_found(call.model)
        prices, metrics = self._deps.models.prices_of(model), self._deps.metrics
        currency = "" if prices is None else prices.currency
        budget = self._budgets.exceeded(call.tenant, call.caller.key_id, currency)
        if budget is not None:
            metrics.quota_refusals.labels(metrics.tenants(call.tenant), budget.quota.value).inc()
            raise budget_used_up(budget.message)
        if router.upstreams and all(upstream.jobs is not None for upstream in router.upstreams):
            message = f"The model '{call.model}' runs jobs, which take longer than a connection: use a batch."
            raise ApiError(400, message, code="invalid_value", param="model")
        if call.tenant in self._tenant_settings.held_tenants:
            raise _hold_error(Limit.TENANT_HOLD, call.model)
        if model in self._tenant_settings.held_models:
            raise _hold_error(Limit.MODEL_HOLD, call.model)
        return router

    @contextmanager
    def charged(self, tenant: str, router: ModelRouter, request_bytes: int) -> Generator[CallCharge]:
        """Context manager that counts one request towards the limits (of requests and tokens per minute) of
        its tenant and model.

        The limits are checked immediately before the request is counted, so that concurrent calls cannot
        exceed them. Inside the `with` block, an estimate of the tokens counts. At the end of the block, the
        tokens in the yielded charge replace the estimate. If no backend has got the request, the request no
        longer counts after the block.

        Args:
            tenant: tenant that has sent the call.
            router: object that chooses the backends of the model.
            request_bytes: size of the request's body in bytes, for the estimate.

        Raises:
            ApiError: a limit per minute is used up (429), or an operator has just stopped the calls of the
                tenant or the model (503).
        """
        self._check_rates(tenant, router)
        model = router.model
        rate = self._model_rates.get(model, NO_RATES).tokens
        most = math.inf if rate is None else rate.part * _MOST_ESTIMATED_SECONDS / 60
        taken = self._limits.charge(model, tenant, request_bytes, time.monotonic(), most)
        charge = CallCharge()
        if taken is None:
            yield charge
            return
        self.rates.count(tenant, model, 1)
        try:
            yield charge
        finally:
            if not charge.is_sent:
                self._limits.give_back(taken)
                self.rates.count(tenant, model, -1)
            elif charge.tokens is None:
                self.rates.count(tenant, model, 0, int(taken.tokens), int(taken.model_tokens))
            else:
                used = charge.tokens
                self._limits.correct(taken, used, most if charge.is_estimated else None)
                of_model = int(min(used, most)) if charge.is_estimated else used
                self.rates.count(tenant, model, 0, used, of_model)

    async def may_send_again(self, tenant: str, router: ModelRouter) -> bool:
        """Return True if a call that a backend has refused may be sent to another backend now.

        Return False if one of these cases applies. The client then gets the backend's refusal.

        - A limit per minute is used up.
        - An operator has stopped the calls of the tenant or the model (a hold).
        - The database is unavailable, so holds cannot be read.
        """
        try:
            await self._permissions.get(_ALL)
        except DatabaseUnavailable:
            return False
        return self._limit_reached(tenant, router) is None

    def _check_rates(self, tenant: str, router: ModelRouter) -> None:
        """Check that one more request of the tenant to the model may be sent now.

        Raises:
            ApiError: a limit per minute is used up (429), or an operator has stopped the calls of the tenant
                or the model (503).
        """
        model, limit = router.model, self._limit_reached(tenant, router)
        if limit is None:
            return
        if limit.is_hold:  # it began while hooks checked the call
            raise _hold_error(limit, model)
        message = f"The call is {self._limits.reason(limit, model, tenant)}. Try again in a moment."
        headers = {"Retry-After": str(_RATE_RETRY_SECONDS)}
        raise ApiError(429, message, code="rate_limit_exceeded", headers=headers)

    def _limit_reached(self, tenant: str, router: ModelRouter) -> Limit | None:
        """Return what forbids a request of the tenant to the model now: a limit per minute, or a hold (an
        operator's order to send no calls). Return None if the request is allowed.
        """
        model, now = router.model, time.monotonic()
        limits = router.limits
        rates = self._own_share(False, model, limits.requests_per_minute, limits.tokens_per_minute)
        if rates is NO_RATES:
            self._model_rates.pop(model, None)
        else:
            self._model_rates[model] = rates
        return self._limits.model_limit(model, now) or self._limits.tenant_rate(tenant, now)

    async def _read_permissions(self, _: str) -> Mapping[str, TenantQuotas]:
        own = {row.tenant: row.own for row in await self._deps.database.quotas.all()}
        holds = await self._deps.database.holds.all()
        self._tenant_settings.held_tenants = {hold.name for hold in holds if hold.kind is HoldKind.TENANT}
        self._tenant_settings.held_models = {hold.name for hold in holds if hold.kind is HoldKind.MODEL}
        others = await self._deps.database.workers.interactive_rates(
            INTERACTIVE_AGE, except_for=self._process
        )
        self._others = {(each.of_tenant, each.name): each for each in others}
        rates = {
            tenant: self._own_share(
                True, tenant, quotas.backend_requests_per_minute, quotas.backend_tokens_per_minute
            )
            for tenant, quotas in own.items()
        }
        self._tenant_settings.rates = {tenant: each for tenant, each in rates.items() if each is not NO_RATES}
        await self._budgets.refresh(own)
        return own

    def _own_share(self, of_tenant: bool, name: str, requests: int | None, tokens: int | None) -> Rates:
        """Return how much of the limits per minute of a tenant or model this process may use.

        Args:
            of_tenant: True if `name` is a tenant, False if it is a model.
            name: name of the tenant or model.
            requests, tokens: limits per minute, which all processes share; None for no limit.
        """
        if requests is None and tokens is None:
            return NO_RATES
        used = self._others.get((of_tenant, name), InteractiveRate(of_tenant, name, 0.0, 0.0, processes=0))

        def part(per_minute: int | None, others: float) -> FleetRate | None:
            if per_minute is None:
                return None
            return FleetRate(per_minute, interactive_share(per_minute, others, used.processes))

        return Rates(part(requests, used.requests), part(tokens, used.tokens))


def _hold_error(hold: Limit, model: str) -> ApiError:
    message = _HOLD_MESSAGES[hold].format(model=model)
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return ApiError(503, message, code=hold.value, headers=headers)
