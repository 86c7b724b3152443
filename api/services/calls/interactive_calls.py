"""Interactive calls: requests that cannot wait for a batch. They are sent to a backend immediately."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Generator
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from secrets import token_hex

import httpx

from batchwright.activities.services.daily_budgets import DailyBudgets
from batchwright.api.dependencies import ApiDependencies, ModelRouters
from batchwright.api.errors import RETRY_AFTER_SECONDS, ApiError
from batchwright.api.services.calls.backend_answer import BackendAnswer, CallCharge, InteractiveCall, SentCall
from batchwright.api.services.calls.held_calls import MAX_HELD, HeldConnections
from batchwright.api.services.calls.interactive_authorizer import InteractiveAuthorizer
from batchwright.api.services.calls.interactive_load import InteractiveLoad
from batchwright.api.services.calls.report_tasks import ReportTasks
from batchwright.contracts.errors import LineCode
from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.backend_client import from_status
from batchwright.inference.backend_headers import forwarded_headers
from batchwright.inference.hooks import HookCall, PreCallHooks
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.router import Dispatch, ModelRouter
from batchwright.inference.upstream import Upstream
from batchwright.process_name import process_name
from batchwright.rules.backends.body_rewriting import INLINE_REWRITE_BYTES, with_model, with_priority
from batchwright.rules.dispatch.retry_policy import HOOK_FAILED, HOOK_REJECTED, NOT_SENT, Category
from batchwright.rules.results.token_usage import NO_TOKENS, Tokens
from batchwright.rules.token_costs import AMOUNT_PER_UNIT, UnitPrices
from batchwright.settings import Settings
from batchwright.telemetry.outage_log import OutageLog

logger = logging.getLogger(__name__)
REPORT_SECONDS = 1.0
_REFUSALS = (401, 403, 429, 503)  # statuses of a backend that has not processed the request
_PRIORITY = 0  # what servers assume for requests without one; the documentation says so to operators
_SEND_ERRORS = (httpx.TransportError, TimeoutError)
# Reasons of circuits that are open because a backend does not accept the operator's API key.
_CREDENTIALS = (Category.AUTHENTICATION, Category.PERMISSION)


class InteractiveCalls:
    """The sender of interactive calls (requests without a batch) to backends. The calls count towards the
    daily budgets (of tokens and cost) and the limits per minute.

    Attributes:
        connections: limits the client connections that are open for interactive calls.
        reports: background tasks that report failed calls to circuit breakers. Before its report, a task
            sends a probe (a small test request) to the backend.
    """

    def __init__(self, deps: ApiDependencies, routers: ModelRouters) -> None:
        """Create the object. Each process has only one.

        Raises:
            SettingsError: a hook (the operator's own code, named in the settings) cannot be imported or is
                not callable.
        """
        self._deps, self._routers, self._metrics = deps, routers, deps.metrics
        self._process = f"{process_name()}:{token_hex(4)}"
        self._budgets = DailyBudgets(
            deps.database.quotas,
            deps.database.budget_groups,
            deps.settings.quotas.budget,
            worker=self._process,
        )
        self._hooks = PreCallHooks(deps.settings, deps.metrics)
        self._authorizer = InteractiveAuthorizer(deps, routers, self._budgets, self._process)
        self.connections = HeldConnections()
        self._load, self.reports = InteractiveLoad(deps.metrics), ReportTasks()
        self._in_flight = Counter[str]()  # number of calls by model
        self._is_reported = True  # False while the database has a load or rates of this process

    async def close(self) -> None:
        """Cancel the background tasks that report failed calls. Then call `publish` for the last time.

        Call this when the last interactive call has ended.

        Raises:
            DatabaseUnavailable: the database does not respond.
        """
        await self.reports.stop()
        await self.publish()

    async def run(self) -> None:
        """Call `publish` (which writes load and usage to the database) every second, until cancelled."""
        outages = OutageLog(logger, "interactive load cannot be published")
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            with outages.suppress(DatabaseUnavailable):
                await self.publish()

    async def publish(self) -> None:
        """Write to the database how many calls of this process are in flight, and how much of the limits per
        minute and the daily budgets the calls of this process have used.

        Other processes read these numbers, because limits and budgets apply to all processes together.

        Also free memory: delete routers (objects that choose backends) of unused model names that no backend
        lists. Clients can invent any number of such names.

        Raises:
            DatabaseUnavailable: the database does not respond.
        """
        self._routers.retain_unlisted(self._in_flight)
        load, rates = self._load.report(), self._authorizer.rates.report()
        workers = self._deps.database.workers
        if load or rates or not self._is_reported:
            await workers.report_interactive_load(self._process, load)
            await workers.report_interactive_rates(self._process, rates)
            self._is_reported = not (load or rates)
        await self._budgets.publish()

    @asynccontextmanager
    async def answer(self, call: InteractiveCall) -> AsyncGenerator[BackendAnswer]:
        """Context manager that sends a call to a backend. It yields the answer as soon as the answer begins.

        If a backend is unreachable, refuses the call or rejects the operator's API key, the next backend of
        the model gets the call. If a backend rejects an API key that has changed since the call was sent, the
        same backend may get the call again. A call that a backend may have processed is never sent again.

        If the circuit breaker of a backend is open, the backend gets only trials: calls that test whether the
        backend works again. If all backends of the model have open circuit breakers and no trial is due, a
        fallback model gets the call, except after a backend has refused the call with 401 or 403.

        If the `with` block ends early, the connection to the backend is closed.

        Raises:
            ApiError: as in `InteractiveAuthorizer.authorize`. A limit per minute is used up (429). A hook of
                the operator refuses the call (403) or fails (500). The circuit breakers of all backends of
                the model are open, and no fallback model can get the call (503). No backend can be reached
                (502, 503, 504).
            DatabaseUnavailable: the permissions cannot be read.
        """
        began, model = time.monotonic(), self._deps.models.canonical(call.model)
        router = await self._authorizer.authorize(call, model)
        with self._counted(model):
            try:
                if self._hooks:
                    call = await self._checked(call, router.model)
                async with self._accepting_backend(call, router) as answer:
                    self._metrics.interactive_seconds.labels(model).observe(time.monotonic() - began)
                    try:
                        yield answer
                    finally:
                        self._count(call, model, answer.result, answer.tokens, is_success=answer.is_success)
                        if answer.is_success and answer.is_fallback:
                            answering = answer.sent.dispatch.upstream.model
                            self._metrics.fallbacks.labels(model, answering).inc()
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

    @asynccontextmanager
    async def _accepting_backend(
        self, call: InteractiveCall, router: ModelRouter
    ) -> AsyncGenerator[BackendAnswer]:
        """Context manager that sends a call to one backend after another until a backend accepts the call. It
        yields the answer of this backend.

        Each request to a backend counts towards the limits per minute. Before each request, these limits and
        the holds (operators' orders to send no calls) are checked. If a backend refuses the call and no other
        backend may get the call, the answer is this refusal.

        Raises:
            _NotSent: no backend may get the call, or the last backend did not answer.
            ApiError: a limit or a hold forbids the first request.
        """
        reachable = (upstream for each in (router, *router.fallbacks) for upstream in each.upstreams)
        tried = [upstream for upstream in reachable if upstream.jobs is not None]
        following = None
        with ExitStack() as charges:
            charge = charges.enter_context(self._charged(call, router))
            following = _selected(router, call.tenant, tried)
            if following is None:
                raise _NotSent(_unavailable(router, call.tenant, tried))
            try:
                while True:
                    dispatch, following = following, None
                    tried.append(dispatch.upstream)
                    async with AsyncExitStack() as sending:
                        answer = await self._send(call, dispatch, charge, sending)
                        if _refused(answer):
                            if isinstance(answer, BackendAnswer):
                                charge.use(NO_TOKENS)
                                tried += _closed_fallbacks(router, answer.response.status)
                                if answer.response.status in (401, 403) and answer.sent.key_has_changed():
                                    tried.remove(dispatch.upstream)
                            charges.close()
                            # Without another backend, the answer does not wait for the database.
                            is_last = router.wait_seconds(call.tenant, exclude=tried) > 0
                            if not is_last and await self._authorizer.may_send_again(call.tenant, router):
                                following = _selected(router, call.tenant, tried)
                        if following is None:
                            if isinstance(answer, Outcome):
                                raise _NotSent(answer)
                            answer.is_fallback = dispatch.upstream.model != router.model
                            charges.callback(answer.settle, charge)
                            yield answer
                            return
                        charge = charges.enter_context(self._charged(call, router))
            finally:
                if following is not None:
                    following.end()

    def _charged(self, call: InteractiveCall, router: ModelRouter) -> AbstractContextManager[CallCharge]:
        return self._authorizer.charged(call.tenant, router, len(call.body))

    async def _checked(self, call: InteractiveCall, model: str) -> InteractiveCall:
        """Call the operator's hooks (functions that can change or refuse a call). Return the call with the
        body that the hooks return.

        Raises:
            _NotSent: a hook refuses the call or fails.
        """
        place = (call.tenant, "", call.request_id, model, call.endpoint.value)
        checked = await self._hooks(HookCall(*place, call.body))
        if isinstance(checked, Outcome):
            raise _NotSent(checked)
        return call._replace(body=checked.body)

    async def _send(
        self, call: InteractiveCall, dispatch: Dispatch, charge: CallCharge, sending: AsyncExitStack
    ) -> BackendAnswer | Outcome:
        """Send the call to one backend. Return its answer. If there is no answer, return an outcome with the
        reason.

        Args:
            charge: object in which the number of used tokens is stored.
            sending: exit stack with the resources of the request. The request ends when this stack is closed.
        """
        upstream, backend = dispatch.upstream, dispatch.upstream.backend
        sent = SentCall(call, dispatch, call.body, self.reports)
        sending.callback(sent.end)
        sending.enter_context(self._load.counted(backend.url))
        body = sent.body = await _body_for(upstream, call)
        extra = forwarded_headers(call.endpoint, call.caller)
        try:
            response = await sending.enter_async_context(
                backend.client.stream(backend.endpoint(call.endpoint), body, call.request_id, extra)
            )
        except _SEND_ERRORS as error:
            outcome = sent.failure(error)
            logger.warning(
                "interactive call failed", extra={"backend": backend.url, "error": outcome.operator_message}
            )
            sent.report(outcome)
            if outcome.verdict is not NOT_SENT:
                charge.use(sent.estimate(0), is_estimated=True)
            return outcome
        except asyncio.CancelledError:
            # The client has left or the process stops, but the backend may have processed the prompt.
            charge.use(sent.estimate(0), is_estimated=True)
            result = "503" if self._deps.stopping.drained.is_set else "disconnected"
            self._count(call, self._deps.models.canonical(call.model), result, sent.estimate(0))
            raise
        charge.use(sent.estimate(0), is_estimated=True)
        return BackendAnswer(response, sent)

    def _count(
        self, call: InteractiveCall, model: str, result: str, tokens: Tokens, *, is_success: bool = False
    ) -> None:
        metrics = self._metrics
        metrics.interactive_requests.labels(model, result).inc()
        metrics.interactive_tokens.labels(model, "prompt").inc(tokens.input_tokens)
        metrics.interactive_tokens.labels(model, "completion").inc(tokens.output_tokens)
        prices, cost = self._deps.models.prices_of(model), 0
        if prices is not None and (is_success or tokens != NO_TOKENS):
            cost = UnitPrices.of(prices).cost(tokens)
            metrics.interactive_cost.labels(model, prices.currency).inc(cost / AMOUNT_PER_UNIT)
        self._budgets.record(
            call.tenant, call.caller.key_id, tokens.input_tokens + tokens.output_tokens, cost
        )


class _NotSent(Exception):
    """The error for a call that got no answer: a hook (a function of the operator) has refused it, or no
    backend has answered it. The client gets `error`.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.error = error_of(outcome)


def error_of(outcome: Outcome) -> ApiError:
    """Return the error for a client whose call got no usable answer from any backend. `outcome` says why."""
    if outcome.verdict is HOOK_REJECTED:
        return ApiError(403, outcome.message, code=outcome.code.value)
    if outcome.verdict is HOOK_FAILED:
        return ApiError(500, outcome.message, code=outcome.code.value)
    if outcome.verdict is NOT_SENT:
        seconds = RETRY_AFTER_SECONDS if outcome.retry_after is None else math.ceil(outcome.retry_after)
        headers = {"Retry-After": str(seconds)}
        return ApiError(503, outcome.message, code=outcome.code.value, headers=headers)
    status = 504 if outcome.code is LineCode.REQUEST_TIMEOUT else 502
    return ApiError(status, outcome.message, code=outcome.code.value)


def _refused(answer: BackendAnswer | Outcome) -> bool:
    """Return True if the call could not be sent, or if the backend has refused the call with a status in
    `_REFUSALS`. In both cases, another backend may get the call.

    Also report a refusal to the backend's circuit breaker.
    """
    if isinstance(answer, Outcome):
        return answer.verdict is NOT_SENT
    status, upstream = answer.response.status, answer.sent.dispatch.upstream
    if status not in _REFUSALS:
        return False
    answer.sent.report(from_status(status, answer.response.headers, b""))
    refusal = {"backend": upstream.backend.url, "status": status}
    logger.warning("a backend has refused an interactive call", extra=refusal)
    return True


def _closed_fallbacks(router: ModelRouter, status: int) -> list[Upstream]:
    """Return the backends of fallback models that must not get a call after a refusal with `status`.

    After 401 or 403, return all backends of fallback models. These statuses can mean that the backend has
    refused the prompt, and a fallback model must not answer a refused prompt. After any other status, return
    an empty list.
    """
    return [each for other in router.fallbacks for each in other.upstreams] if status in (401, 403) else []


def _selected(router: ModelRouter, tenant: str, tried: Collection[Upstream]) -> Dispatch | None:
    """Select the next backend for a call, and return a `Dispatch` (the request to this backend).

    Return None if no backend is left. Also return None if the circuit breakers of all backends are open and
    the tenant may not send a trial yet. A trial is a request that shows whether a backend has recovered.

    Args:
        tried: backends that must not be selected.
    """
    if router.wait_seconds(tenant, exclude=tried):
        return None
    return router.select(tenant=tenant, exclude=tried)


def _unavailable(router: ModelRouter, tenant: str, excluded: Collection[Upstream]) -> Outcome:
    """Return the outcome of a call that was not sent, because no backend of the model is available.

    Args:
        excluded: backends that never get interactive calls. They run jobs, and the answer of a job comes too
            late for an open connection.
    """
    wait = router.wait_seconds(tenant, exclude=excluded)
    if not router.all_own_circuits_open or wait == math.inf:
        return Outcome(NOT_SENT, message="No backend of the model can be reached.")
    reason, wait = router.circuit.reason, max(1.0, wait)
    if reason in _CREDENTIALS:
        reason = "They do not accept the credentials that the operator has configured."
    message = f"The backends of the model '{router.model}' have failed and get no calls for now. {reason}"
    return Outcome(NOT_SENT, message=message, retry_after=wait)


def client_settings(settings: Settings) -> Settings:
    """Return the settings for backend clients in a process that sends interactive calls.

    These settings differ from `settings` in two values:

    - The HTTP engine is `httpx`, because other engines return an answer only when it is complete.
    - The limit of connections is the maximum number of open calls in this process. Calls to a backend that
      does not respond can then not use up the connections and delay calls to other backends.
    """
    return settings.model_copy(update={"http_engine": "httpx", "global_in_flight": MAX_HELD})


async def _body_for(upstream: Upstream, call: InteractiveCall) -> bytes:
    """Return the body of a call as it is sent to one backend.

    In this body, the model has the name that the backend uses. If the operator has set a `priority` for
    batches at this backend, the body contains the priority of interactive calls, which replaces a priority
    from the client.
    """
    is_renamed, has_priority = upstream.upstream_model != call.model, upstream.priority is not None

    def rewritten() -> bytes:
        body = with_model(call.body, upstream.upstream_model) if is_renamed else call.body
        return with_priority(body, _PRIORITY) if has_priority else body

    if len(call.body) <= INLINE_REWRITE_BYTES or not (is_renamed or has_priority):
        return rewritten()
    return await asyncio.to_thread(rewritten)
