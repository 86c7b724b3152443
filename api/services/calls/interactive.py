"""Interactive calls: requests that cannot wait. They are sent to a backend of their model at once."""

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import NamedTuple

import httpx

from batchwright.activities.services.backend_jobs import forwarded_headers
from batchwright.activities.services.daily_budgets import DailyBudgets
from batchwright.api.dependencies import ApiDependencies, ModelRouters
from batchwright.api.errors import RETRY_AFTER_SECONDS, ApiError, budget_used_up, model_not_found
from batchwright.api.services.calls.held_calls import MAX_HELD, HeldConnections
from batchwright.api.services.calls.interactive_load import InteractiveLoad
from batchwright.api.services.read_cache import CoalescingCache
from batchwright.contracts.errors import LineCode
from batchwright.contracts.payloads.batch import Caller
from batchwright.contracts.terms import Endpoint
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.tenants.quota_records import TenantQuotas
from batchwright.inference.hooks import HookCall, PreCallHooks
from batchwright.inference.outcomes import Outcome
from batchwright.inference.router import Dispatch, ModelRouter
from batchwright.inference.transport.base import StreamedResponse
from batchwright.inference.upstream import Upstream
from batchwright.rules.backends.body_rewriting import INLINE_REWRITE_BYTES, with_model, with_priority
from batchwright.rules.costs import AMOUNT_PER_UNIT, UnitPrices
from batchwright.rules.dispatch.retry_policy import HOOK_FAILED, HOOK_REJECTED, NOT_SENT
from batchwright.rules.results.token_usage import Tokens
from batchwright.settings import Settings

logger = logging.getLogger(__name__)
REPORT_SECONDS = 1.0
_BYTES_PER_TOKEN = 4  # of a request, to estimate its prompt tokens
_REFUSALS = (401, 403, 429, 503)  # statuses of a backend that has not processed the request
_PRIORITY = 0  # what servers assume for requests without one; the documentation says so to operators
_SEND_ERRORS = (httpx.TransportError, TimeoutError)
_ALL = ""  # key of the permissions, which are read for all tenants together


class InteractiveCall(NamedTuple):
    """A request that is sent to a backend at once, without a batch.

    Attributes:
        model: name of the model in the request. It may be an alias.
        body: the body as JSON.
    """

    endpoint: Endpoint
    model: str
    body: bytes
    tenant: str
    caller: Caller
    request_id: str


@dataclass(eq=False)
class BackendAnswer:
    """Answer of a backend to an interactive call. Its body is still arriving.

    Call `end` when the body is complete or has broken off. Without this call, it is assumed that the client
    has disconnected: only the estimated tokens of the prompt are counted.

    Attributes:
        request: body of the request that the backend got.
        failure: function that returns the outcome if receiving the body fails. Its message is for the client.
        result: how the call ended, for metrics.
        tokens: tokens that the call has used.
    """

    response: StreamedResponse
    request: bytes
    failure: Callable[[Exception], Outcome]
    result: str = field(default="disconnected", init=False)
    tokens: Tokens = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = self.estimate(0)

    def end(self, result: str, tokens: Tokens) -> None:
        self.result, self.tokens = result, tokens

    def estimate(self, output_tokens: int) -> Tokens:
        """Estimate the tokens of the call. Used if the backend reports no tokens."""
        return _estimate(self.request, output_tokens)


class InteractiveCalls:
    """Sends interactive calls to backends.

    They count towards the budgets of tenants and the limits of backends.

    Attributes:
        connections: limits the client connections that are open for interactive calls.
    """

    def __init__(self, deps: ApiDependencies, routers: ModelRouters) -> None:
        """Create the object. Each process has only one.

        Raises:
            SettingsError: a hook (the operator's own code, named in the settings) cannot be imported or is
                not callable.
        """
        self._deps, self._routers, self._metrics = deps, routers, deps.metrics
        self._process = f"{socket.gethostname()}:{os.getpid()}:{token_hex(4)}"
        self._budgets = DailyBudgets(
            deps.database.quotas,
            deps.database.budget_groups,
            deps.settings.quotas.budget,
            worker=self._process,
        )
        self._hooks = PreCallHooks(deps.settings)
        self._permissions = CoalescingCache(self._read_permissions, deps.recent_seconds)
        self.connections = HeldConnections()
        self._load = InteractiveLoad(deps.metrics)
        self._in_flight = Counter[str]()  # number of calls by model
        self._is_reported = True  # False while the database has a load of this process

    async def run(self) -> None:
        """Publish the load and the token usage of this process every second, until the task is cancelled."""
        failing = False
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            try:
                await self.publish()
                failing = False
            except DatabaseUnavailable as error:
                if not failing:
                    logger.warning("interactive load cannot be published", extra={"error": str(error)})
                failing = True

    async def publish(self) -> None:
        """Write the requests in flight to the database for the workers, and the token usage for the budgets.

        Models that no backend serves are forgotten when they are no longer in use. Clients could invent any
        number of them.

        Raises:
            DatabaseUnavailable: the database does not respond.
        """
        self._routers.retain_unlisted(self._in_flight)
        load = self._load.report()
        if load or not self._is_reported:
            await self._deps.database.workers.report_interactive_load(self._process, load)
            self._is_reported = not load
        await self._budgets.publish()

    @asynccontextmanager
    async def answer(self, call: InteractiveCall) -> AsyncGenerator[BackendAnswer]:
        """Context manager that sends a call to a backend. It yields the answer as soon as the answer begins.

        A backend that cannot be reached, refuses the call or rejects the API key has not processed the call.
        The call is then sent to the model's next backend. After a backend has begun to process a call, the
        call is never sent again. If the `with` block ends early, the connection to the backend is closed.

        Raises:
            ApiError: the tenant may not use the model or no backend serves it (404). Or a budget is used up
                (429). Or a hook (the operator's own code) refuses the call (403) or fails (500). Or no
                backend can be reached (502, 503, 504).
            DatabaseUnavailable: the permissions cannot be read.
        """
        began, model = time.monotonic(), self._deps.models.canonical(call.model)
        router = await self._admit(call, model)
        with self._counted(model):
            try:
                async with self._accepted(call, router) as answer:
                    self._metrics.interactive_seconds.labels(model).observe(time.monotonic() - began)
                    try:
                        yield answer
                    finally:
                        self._count(call, model, answer.result, answer.tokens)
            except _NotSent as error:
                self._metrics.interactive_requests.labels(model, str(error.error.status)).inc()
                raise error.error from None

    @contextmanager
    def _counted(self, model: str) -> Generator[None]:
        self._in_flight[model] += 1
        try:
            yield
        finally:
            self._in_flight[model] -= 1
            if not self._in_flight[model]:
                del self._in_flight[model]

    async def _admit(self, call: InteractiveCall, model: str) -> ModelRouter:
        await self._deps.models.served()  # reads the models if this is the first call of the process
        own = (await self._permissions.get(_ALL)).get(call.tenant)
        router = self._routers.router_for(model)
        if router is None or (own is not None and not own.may_use(model)):
            raise model_not_found(call.model)
        prices = self._deps.models.prices_of(model)
        currency = "" if prices is None else prices.currency
        budget = self._budgets.exceeded(call.tenant, call.caller.key_id, currency)
        if budget is not None:
            self._metrics.quota_refusals.labels(self._metrics.tenants(call.tenant), budget.quota.value).inc()
            raise budget_used_up(budget.message)
        if router.upstreams and all(upstream.jobs is not None for upstream in router.upstreams):
            message = f"The model '{call.model}' runs jobs, which take longer than a connection: use a batch."
            raise ApiError(400, message, code="invalid_value", param="model")
        return router

    async def _read_permissions(self, _: str) -> Mapping[str, TenantQuotas]:
        own = {row.tenant: row.own for row in await self._deps.database.quotas.all()}
        await self._budgets.refresh(own)
        return own

    @asynccontextmanager
    async def _accepted(self, call: InteractiveCall, router: ModelRouter) -> AsyncGenerator[BackendAnswer]:
        """Context manager that tries the model's backends in turn.

        It yields the answer of the first that accepts.

        Raises:
            _NotSent: a hook refuses the call or fails, or no backend has answered.
        """
        if self._hooks:
            place = (call.tenant, "", call.request_id, router.model, call.endpoint.value)
            checked = await self._hooks(HookCall(*place, call.body))
            if isinstance(checked, Outcome):
                raise _NotSent(checked)
            call = call._replace(body=checked.body)
        tried = [upstream for upstream in router.upstreams if upstream.jobs is not None]
        while (dispatch := router.select(tenant=call.tenant, exclude=tried)) is not None:
            upstream = dispatch.upstream
            tried.append(upstream)
            is_last = len(tried) >= len(router.upstreams)
            async with AsyncExitStack() as sending:
                body = await self._send(call, dispatch, sending)
                if isinstance(body, Outcome):
                    if body.verdict is not NOT_SENT or is_last:
                        raise _NotSent(body)
                elif is_last or body.response.status not in _REFUSALS:
                    yield body
                    return
                else:
                    refusal = {"backend": upstream.backend.url, "status": body.response.status}
                    logger.warning("a backend has refused an interactive call", extra=refusal)
        raise _NotSent(Outcome(NOT_SENT, message="No backend of the model can be reached."))

    async def _send(
        self, call: InteractiveCall, dispatch: Dispatch, sending: AsyncExitStack
    ) -> BackendAnswer | Outcome:
        """Send the call to one backend. Return its answer, or an outcome that says why there is none.

        Closing `sending` ends the request.
        """
        upstream, backend = dispatch.upstream, dispatch.upstream.backend
        sending.callback(dispatch.end)
        sending.enter_context(self._load.counted(backend.url))
        body = await _body_for(upstream, call)
        extra = forwarded_headers(call.endpoint, call.caller)
        try:
            response = await sending.enter_async_context(
                backend.client.stream(backend.endpoint(call.endpoint), body, call.request_id, extra)
            )
        except _SEND_ERRORS as error:
            outcome = backend.client.failure(error)
            logger.warning(
                "interactive call failed", extra={"backend": backend.url, "error": outcome.operator_message}
            )
            return outcome
        except asyncio.CancelledError:
            # The client has left, but the backend may have processed the prompt.
            self._count(call, upstream.model, "disconnected", _estimate(body, 0))
            raise
        return BackendAnswer(response, body, backend.client.failure)

    def _count(self, call: InteractiveCall, model: str, result: str, tokens: Tokens) -> None:
        metrics = self._metrics
        metrics.interactive_requests.labels(model, result).inc()
        metrics.interactive_tokens.labels(model, "prompt").inc(tokens.input_tokens)
        metrics.interactive_tokens.labels(model, "completion").inc(tokens.output_tokens)
        prices, cost = self._deps.models.prices_of(model), 0
        if prices is not None and tokens != Tokens():
            cost = UnitPrices.of(prices).cost(tokens)
            metrics.interactive_cost.labels(model, prices.currency).inc(cost / AMOUNT_PER_UNIT)
        used = tokens.input_tokens + tokens.output_tokens
        self._budgets.record(call.tenant, call.caller.key_id, used, cost)


class _NotSent(Exception):
    """Raised if a hook stops the call or no backend answers. `error` is the error for the client."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.error = error_of(outcome)


def error_of(outcome: Outcome) -> ApiError:
    """Return the error for a client whose call got no usable answer from any backend."""
    if outcome.verdict is HOOK_REJECTED:
        return ApiError(403, outcome.message, code=outcome.code.value)
    if outcome.verdict is HOOK_FAILED:
        return ApiError(500, outcome.message, code=outcome.code.value)
    if outcome.verdict is NOT_SENT:
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        return ApiError(503, outcome.message, code=outcome.code.value, headers=headers)
    status = 504 if outcome.code is LineCode.REQUEST_TIMEOUT else 502
    return ApiError(status, outcome.message, code=outcome.code.value)


def _estimate(request: bytes, output_tokens: int) -> Tokens:
    return Tokens(len(request) // _BYTES_PER_TOKEN, output_tokens=output_tokens)


def client_settings(settings: Settings) -> Settings:
    """Return the settings for backend clients in a process that sends interactive calls.

    They differ in two points. The engine is `httpx`, because only this engine passes on an answer while it
    arrives. There is one connection for each call that the process may have open. So calls to a backend that
    hangs do not delay calls to other backends.
    """
    return settings.model_copy(update={"http_engine": "httpx", "global_in_flight": MAX_HELD})


async def _body_for(upstream: Upstream, call: InteractiveCall) -> bytes:
    """Return the body for one backend, with the name that the model has there.

    If the backend gives batches a priority, the call gets the priority for interactive requests. Tenants
    cannot raise it.
    """
    is_renamed, has_priority = upstream.upstream_model != call.model, upstream.priority is not None

    def rewritten() -> bytes:
        body = with_model(call.body, upstream.upstream_model) if is_renamed else call.body
        return with_priority(body, _PRIORITY) if has_priority else body

    if len(call.body) <= INLINE_REWRITE_BYTES or not (is_renamed or has_priority):
        return rewritten()
    return await asyncio.to_thread(rewritten)
