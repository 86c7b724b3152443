"""Handles an interactive call (a request that is sent immediately, without a batch) at one backend: request,
answer, and report to the circuit breaker.
"""

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from batchwright.api.services.calls.report_tasks import ReportTasks
from batchwright.contracts.temporal_payloads.batch import Caller
from batchwright.contracts.terms import Endpoint
from batchwright.inference.backend_client import parse_response
from batchwright.inference.circuits.circuit_reports import (
    report_failure,
    report_probe_success,
    report_success,
)
from batchwright.inference.probes import PROBED_ENDPOINTS, ProbeResult
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.router import Dispatch
from batchwright.inference.transport.base import StreamedResponse
from batchwright.inference.upstream import Upstream
from batchwright.rules.dispatch.retry_policy import SUCCESS, Budget
from batchwright.rules.results.token_usage import Tokens

_BYTES_PER_TOKEN = 4  # bytes of a request for each prompt token, for the estimate
_MAX_KEPT_BYTES = 4 * 1024  # larger error bodies are dropped while a report waits for a probe


class InteractiveCall(NamedTuple):
    """A request that is sent to a backend immediately, without a batch.

    Attributes:
        model: name of the model in the request. It may be an alias.
        body: the body as JSON.
        request_id: id of the API request.
    """

    endpoint: Endpoint
    model: str
    body: bytes
    tenant: str
    caller: Caller
    request_id: str


@dataclass(eq=False)
class CallCharge:
    """A record of the tokens of one request to a backend, for the limits of requests and tokens per minute.

    Attributes:
        is_sent: True if the backend has got the request.
        tokens: number of tokens to count; None to count the estimate that was made before the request.
        is_estimated: True if `tokens` is an estimate, because the backend has not reported the tokens.
    """

    is_sent: bool = False
    tokens: int | None = None
    is_estimated: bool = False

    def use(self, tokens: Tokens, *, is_estimated: bool = False) -> None:
        self.is_sent = True
        self.tokens, self.is_estimated = tokens.input_tokens + tokens.output_tokens, is_estimated

    def keep_estimate(self) -> None:
        self.is_sent, self.tokens = True, None


@dataclass(eq=False)
class SentCall:
    """An interactive call (a request without a batch) that is sent to one backend.

    Attributes:
        body: body of the request as the backend gets it.
        reports: the background tasks of this process that report failed calls to circuit breakers. Before its
            report, such a task sends a probe (a small test request) to the backend.
        reporting: the background task that reports this call; None if there is no such task.
        is_prompt_refused: True if the backend has refused this call with 401 or 403, but accepts the
            operator's API key.
        is_reported: True after the first report.
    """

    call: InteractiveCall
    dispatch: Dispatch
    body: bytes
    reports: ReportTasks
    reporting: asyncio.Task[None] | None = field(default=None, init=False)
    is_prompt_refused: bool = field(default=False, init=False)
    is_reported: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._key_changes = self.dispatch.upstream.backend.client.key_changes

    def key_has_changed(self) -> bool:
        """Read the backend's API key again. Return True if it has changed since the call was sent."""
        client = self.dispatch.upstream.backend.client
        client.reload_key()
        return client.key_changes != self._key_changes

    def estimate(self, output_tokens: int) -> Tokens:
        """Return an estimate of the call's tokens, for a call whose tokens the backend has not reported.

        The tokens of the prompt are estimated from the size of the body.

        Args:
            output_tokens: tokens of the answer.
        """
        return Tokens(len(self.body) // _BYTES_PER_TOKEN, output_tokens=output_tokens)

    def failure(self, error: Exception) -> Outcome:
        """Return the outcome of a call that raised `error` when it was sent or answered. The outcome has a
        message for the client.
        """
        return self.dispatch.upstream.backend.client.failure(error)

    def end(self) -> None:
        """End the request to the backend. If a background task is still reporting the outcome of the call,
        end the request when that task has ended.
        """
        if self.reporting is None or self.reporting.done():
            self.dispatch.end()
        else:
            dispatch = self.dispatch  # the report may take long, and must not keep the body in memory
            self.reporting.add_done_callback(lambda _: dispatch.end())

    def report(self, outcome: Outcome) -> None:
        """Report the outcome of the call to the backend's circuit breaker. Only the first report counts.

        In two cases, a probe (a small test request) is sent before the report. The probe shows whether the
        backend or the call is at fault:

        - Several calls have failed, and no call has succeeded since.
        - The backend has refused this call with status 401 or 403. Some backends refuse prompts with these
          statuses, too.

        The probe and the report run in a background task, so that the client does not wait. If too many of
        these tasks are running, the call is not reported.
        """
        dispatch, budget = self.dispatch, outcome.verdict.budget
        if dispatch.attempt.is_recorded or self.is_reported:
            return
        self.is_reported = True
        if budget is Budget.CREDENTIALS:
            self.is_prompt_refused = dispatch.upstream.circuit.record_refusal()
        if budget is Budget.SETTLED:
            if outcome.verdict is SUCCESS:
                dispatch.upstream.probes.answered.add(self.call.endpoint)
            report_success(dispatch)
            return
        if self._needs_probe(budget):
            if not self.reports.is_full:
                if len(outcome.body) > _MAX_KEPT_BYTES:  # the outcome stays in memory while the probe runs
                    outcome = replace(outcome, body=b"")
                report = _report_after_probe(dispatch, self.call.endpoint, self.call.tenant, outcome)
                self.reporting = self.reports.start(report)
        elif budget is not Budget.ATTEMPT:
            _report_failure(dispatch, self.call.tenant, outcome, is_alive=False)

    def _needs_probe(self, budget: Budget) -> bool:
        circuit, attempt = self.dispatch.upstream.circuit, self.dispatch.attempt
        if budget is Budget.CREDENTIALS:
            may_change = attempt.is_trial or not circuit.is_open
            return may_change and not circuit.succeeded_since(attempt.sent_at)
        id = f"{self.call.request_id} {attempt.sent_at}"  # clients may repeat their request ids
        return budget is Budget.ATTEMPT and circuit.record_suspect(
            attempt, id, since=attempt.sent_at, proved=False
        )


async def _report_after_probe(dispatch: Dispatch, endpoint: Endpoint, tenant: str, outcome: Outcome) -> None:
    result = await _probe(dispatch.upstream, endpoint)
    if result is ProbeResult.NORMAL:
        report_probe_success(dispatch)
    is_alive = result is not ProbeResult.NONE and outcome.status > 0
    _report_failure(dispatch, tenant, outcome, is_alive=is_alive)


def _report_failure(dispatch: Dispatch, tenant: str, outcome: Outcome, *, is_alive: bool) -> None:
    circuit, attempt = dispatch.upstream.circuit, dispatch.attempt
    if outcome.verdict.budget is not Budget.CAPACITY and circuit.succeeded_since(attempt.sent_at):
        circuit.record_abort(attempt)
    else:
        report_failure(dispatch, outcome, tenant, short_pauses=is_alive)


async def _probe(upstream: Upstream, endpoint: Endpoint) -> ProbeResult:
    """Send probes (small test requests) to a backend until they show whether it works. Return the result.

    If the backend has answered requests before, send one probe to an endpoint at which the backend has
    answered.

    Otherwise, probe `endpoint`, which the tenant has chosen. If this probe shows only that the backend is
    alive, perhaps the model does not support this endpoint. Then probe other endpoints, one after the other.
    If an endpoint answers successfully, the backend works.
    """
    answered = upstream.probes.answered
    if answered:
        return await upstream.probe(endpoint if endpoint in answered else min(answered))
    result = await upstream.probe(endpoint)
    for other in (each for each in PROBED_ENDPOINTS if each != endpoint):
        if result is not ProbeResult.ALIVE or answered:
            break
        other_result = await upstream.probe(other)
        if other in answered or other_result is ProbeResult.NONE:
            result = other_result
    return result


@dataclass(eq=False)
class BackendAnswer:
    """A backend's answer to an interactive call (a request without a batch). Its body is still arriving.

    When the body is complete or has broken off, the caller must call `end`. If `end` is not called, the
    metrics show that the client has disconnected, and only the estimated tokens of the prompt count.

    Attributes:
        result: how the call ended, for metrics.
        tokens: tokens that the call has used.
        is_estimated: True if the backend has not reported the tokens.
        is_success: True after the whole answer has arrived and is a normal response.
        is_fallback: True if a fallback model answers instead of the requested model.
    """

    response: StreamedResponse
    sent: SentCall
    is_success: bool = field(default=False, init=False)
    is_fallback: bool = field(default=False, init=False)
    result: str = field(default="disconnected", init=False)
    tokens: Tokens = field(init=False)
    is_estimated: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.tokens = self.sent.estimate(0)

    def end(self, result: str, reported: Tokens | None, *, output_tokens: int = 0) -> None:
        """Record how the call has ended.

        Args:
            result: value of the label `result` in metrics.
            reported: tokens that the backend has reported; None to estimate them.
            output_tokens: tokens of the answer, for the estimate.
        """
        self.result, self.is_estimated = result, reported is None
        self.tokens = self.sent.estimate(output_tokens) if reported is None else reported

    def read(self, body: bytes) -> Outcome:
        """Return what the complete body of the answer means for the call (its outcome). Also report the
        outcome to the backend's circuit breaker.
        """
        outcome = parse_response(self.response.status, self.response.headers, body, self.sent.body)
        self.is_success = outcome.verdict is SUCCESS
        self.sent.report(outcome)
        return outcome

    def fail(self, error: Exception) -> Outcome:
        """Return the outcome of a call whose answer has broken off with `error`. Also report the outcome to
        the backend's circuit breaker.
        """
        outcome = self.sent.failure(error)
        self.sent.report(outcome)
        return outcome

    def succeed(self) -> None:
        """Report success to the backend's circuit breaker. Call this when a stream has arrived completely,
        without an error in it.
        """
        self.is_success = True
        self._report_success()

    def begin(self) -> None:
        """Report success to the backend's circuit breaker if this call is a trial. Call this at the first
        event of a stream.

        A trial is a request that tests whether a failed backend works again. The first event already proves
        this. The last event may arrive minutes later.
        """
        if self.sent.dispatch.attempt.is_trial:
            self._report_success()

    def _report_success(self) -> None:
        if not self.sent.dispatch.attempt.is_recorded:
            self.sent.dispatch.upstream.probes.answered.add(self.sent.call.endpoint)
            report_success(self.sent.dispatch)

    def settle(self, charge: CallCharge) -> None:
        """Store in `charge` how many tokens of this call count towards the limits per minute. Call this when
        the call has ended.

        Before the end, an estimate counts. If the answer is successful but reports no tokens, the estimate
        still counts after the end. Tokens of batch lines are counted in the same way.
        """
        if self.is_success and not self.tokens.input_tokens + self.tokens.output_tokens:
            charge.keep_estimate()
        else:
            charge.use(self.tokens, is_estimated=self.is_estimated)
