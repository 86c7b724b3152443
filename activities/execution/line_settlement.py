"""Handle the outcomes of requests: give a line its final result (settle the line), or schedule a retry."""

import logging
import time
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from batchwright.activities.execution.line_attempts import LineAttempts
from batchwright.activities.execution.line_or_backend_fault import FaultAttribution
from batchwright.activities.execution.slice_state.line_queue import SliceLine
from batchwright.activities.execution.slice_state.segment_buffer import SegmentBuffer
from batchwright.activities.execution.worker_context import WorkerContext
from batchwright.activities.services.batch_cost_cap import SliceCost
from batchwright.contracts.errors import LINE_MESSAGES, LineCode
from batchwright.contracts.temporal_payloads.execution import SliceRequest
from batchwright.inference.circuits.circuit_reports import report_success
from batchwright.inference.limits.concurrency_limiter import Permit
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.router import Dispatch, ModelRouter
from batchwright.inference.transport.base import Exchange
from batchwright.rules.dispatch.retry_policy import (
    BACKEND_AT_FAULT,
    RESPONSE_INTERRUPTED,
    SUCCESS,
    Budget,
    Category,
)
from batchwright.rules.input.line_parser import LineDamaged, read_request
from batchwright.rules.planning.plan_format import PlanDamaged
from batchwright.rules.results import output_lines
from batchwright.rules.results.dead_letters import FinalAttempt, error_summary
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from batchwright.rules.results.token_usage import Tokens, tokens_of
from batchwright.rules.token_costs import AMOUNT_PER_UNIT
from batchwright.telemetry.prometheus.metric_series import CounterSeries

logger = logging.getLogger(__name__)


class OutboundRequest(Struct, eq=False):
    request_id: str
    custom_id: str
    body: bytes


class InFlightRequest(Struct, eq=False):
    """A request in flight for one line, with its permit and its reserved memory.

    Attributes:
        permit: the right to have one request in flight.
        dispatch: the backend that has the request now. If the request moves to another backend, this field is
            replaced.
        line_bytes: length of the line in bytes. It is stored here because `line.data` is freed at the end of
            an attempt of the slice, while requests are still in flight.
        held: bytes of the memory budget that are reserved for the request and its response.
        job_since: Unix seconds at which the line's running job was submitted; None if the line has no job.
        exchange: the HTTP request, if it was sent without a task and has no response yet; otherwise None.
        outcome: outcome of a request that was sent without a task, if a task must handle this outcome;
            otherwise None.
        seconds: duration of a request that was sent without a task; 0 until it has ended.
    """

    line: SliceLine
    request: OutboundRequest
    permit: Permit
    dispatch: Dispatch
    line_bytes: int
    held: int
    job_since: float | None = None
    exchange: Exchange | None = None
    outcome: Outcome | None = None
    seconds: float = 0.0


# Requests with the same values are counted together: backend URL, HTTP status, failure, kind of chat.
_RequestKind = tuple[str, int, Category, str]


class LineMetricsBuffer:
    """A buffer for the metrics of one slice's lines. They are added to the process's metrics regularly.

    Updating the process's metrics for each line would be slow.
    """

    def __init__(self, worker: WorkerContext, request: SliceRequest, cost: SliceCost | None) -> None:
        metrics, model = worker.metrics, request.model
        self._model, self._traffic, self._permissions = model, worker.traffic, worker.permissions
        self._record_usage = partial(worker.permissions.record_usage, request.tenant, request.caller.key_id)
        self._seconds = metrics.request_seconds.labels(model)
        self._request_errors = metrics.request_errors.labels(model)
        self._prompt = metrics.prompt_tokens.labels(model)
        self._generated = metrics.generation_tokens.labels(model)
        self._cost, prices = cost, request.prices
        self._spent = None if prices is None else metrics.request_cost.labels(model, prices.currency)
        tenant = metrics.tenants(request.tenant)
        self._errors, self._successes = (
            (metrics.results.labels(model, result), metrics.tenant_results.labels(tenant, result))
            for result in ("error", "success")
        )
        self._retries, self._fallbacks, self._dead = metrics.retries, metrics.fallbacks, metrics.dead_letters
        self._unsent = metrics.settled_lines
        # Not flushed yet:
        self._requests: dict[_RequestKind, list[float]] = {}  # durations in seconds
        self.durations: list[float] = []  # seconds of each request whose outcome was applied to its line
        self._responses: dict[str, list[Tokens]] = {}  # tokens of each success, by backend URL
        self._failed, self._tokens, self._amount = 0, 0, 0

    def request_ended(self, url: str, outcome: Outcome, seconds: float, chat: str) -> None:
        """Count a request that has ended.

        Args:
            url: URL of the backend.
            seconds: duration of the request.
            chat: CHAT for a chat that was sent alone, GROUPED_CHAT for a chat that may share its request with
                other chats; empty if the request is not a chat.
        """
        kind = url, outcome.status, outcome.verdict.category, chat
        durations = self._requests.get(kind)
        if durations is None:
            durations = self._requests[kind] = []
        durations.append(seconds)

    def succeeded(self, url: str, usage: Tokens) -> None:
        """Count a line that succeeded at the backend `url`, and the tokens that it used."""
        responses = self._responses.get(url)
        if responses is None:
            responses = self._responses[url] = []
        responses.append(usage)
        self._tokens += usage.input_tokens + usage.output_tokens
        if self._cost is not None:
            self._amount += self._cost.add(usage)
        if self._permissions.version is None:  # a budget may run out with this line
            self._flush_usage()

    def failed(self) -> None:
        """Count a line that failed and will be in the error file."""
        self._failed += 1
        self._request_errors.inc()

    def settled_unsent(self, code: LineCode) -> None:
        """Count a line that was settled with an error because it was not allowed to be sent."""
        self._unsent.labels(self._model, code.value).inc()
        self._request_errors.inc()

    def retried(self, category: Category) -> None:
        self._retries.labels(self._model, category).inc()

    def fell_back(self, model: str) -> None:
        """Count a line that was answered by `model`, a fallback for the line's own model."""
        self._fallbacks.labels(self._model, model).inc()

    def dead_letter(self, code: str) -> None:
        self._dead.labels(self._model, code).inc()

    def flush(self) -> None:
        """Add the buffered counts to the metrics that /metrics shows."""
        if self.durations:
            self._seconds.observe_all(self.durations)
            self.durations.clear()
        for (url, status, category, chat), durations in self._requests.items():
            self._traffic.record(self._model, url, durations, status=status, category=category, chat=chat)
        self._requests.clear()
        _increase(self._errors, self._failed)
        self._failed = 0
        for url, responses in self._responses.items():
            _increase(self._successes, len(responses))
            self._prompt.inc(sum(usage.input_tokens for usage in responses))
            self._generated.inc(sum(usage.output_tokens for usage in responses))
            self._traffic.record_usage(self._model, url, responses)
        self._responses.clear()
        self._flush_usage()

    def _flush_usage(self) -> None:
        tokens, self._tokens = self._tokens, 0
        amount, self._amount = self._amount, 0
        if amount and self._spent is not None:
            self._spent.inc(amount / AMOUNT_PER_UNIT)
        if tokens or amount:
            self._record_usage(tokens, amount)


def _increase(counters: Sequence[CounterSeries], lines: int) -> None:
    if lines:
        for counter in counters:
            counter.inc(lines)


class LineSettler:
    """An object that creates the requests for a slice's lines, and handles their outcomes.

    An outcome either settles its line, or leads to a retry.
    """

    def __init__(
        self,
        worker: WorkerContext,
        request: SliceRequest,
        writer: SegmentBuffer,
        router: ModelRouter,
        cost: SliceCost | None,
    ) -> None:
        self._batch_id, self._model = request.batch_id, request.model
        self._writer, self._budget, self._prefixes = writer, worker.budget, router.prefixes
        self.metrics = LineMetricsBuffer(worker, request, cost)
        self.attribution = FaultAttribution(
            request.tenant, others_wait=partial(worker.permits.others_wait, request.model, request.tenant)
        )
        self.attempts = LineAttempts(request, writer, router.retries)

    def request(self, line: SliceLine) -> OutboundRequest:
        """Create the request that sends a line.

        Raises:
            PlanDamaged: the line is not a request that ingestion would have accepted.
        """
        try:
            custom_id, body = read_request(line.data)
        except LineDamaged as error:
            raise PlanDamaged(f"{self._batch_id}: the line at {line.offset}: {error}") from error
        return OutboundRequest(line.request_id, custom_id, body)

    def observe(self, sent: InFlightRequest, outcome: Outcome) -> None:
        """Report the outcome of a request to all objects that adapt to the responses of backends.

        These objects limit the requests in flight, group lines by their system prompt, and reserve memory for
        each response.
        """
        sent.permit.record_outcome(outcome)
        if outcome.verdict is SUCCESS:
            seconds = sent.dispatch.upstream.circuit.clock() - sent.dispatch.attempt.sent_at
            self._prefixes.record_success(sent.line.prefix_group, seconds)
        elif sent.line.attempt.job is None and (outcome.status or outcome.is_unsent):
            # The backend refused or did not get the request: no tokens were used.
            sent.permit.correct_charge(0)
        self._budget.observe_response(len(outcome.body))

    # Settling

    def reject(self, line: SliceLine, reason: str, code: LineCode = LineCode.POLICY_REJECTED) -> None:
        """Settle a line that is not allowed to be sent, with an error as its result.

        Args:
            reason: the error message for the client.
            code: the error code of the line.

        Raises:
            PlanDamaged: the line is not a request.
        """
        request = self.request(line)
        payload = output_lines.error_line(request.request_id, request.custom_id, code, reason)
        self.metrics.settled_unsent(code)
        self._writer.add(SegmentRecord(RecordKind.SETTLED, line.offset, payload))

    def fail_crashed(self, line: SliceLine) -> None:
        """Settle a line with an error, because several workers have crashed while sending it.

        Raises:
            PlanDamaged: the line is not a request.
        """
        request, code = self.request(line), LineCode.WORKER_CRASHED
        outcome = Outcome(RESPONSE_INTERRUPTED, code=code, message=LINE_MESSAGES[code])
        logger.warning("line failed: it crashed its workers", extra={"offset": line.offset})
        payload = output_lines.error_line(request.request_id, request.custom_id, code, LINE_MESSAGES[code])
        self.metrics.failed()
        self._add_dead_letter(line, request, outcome, line.attempt.crashes)
        self._writer.add(SegmentRecord(RecordKind.SETTLED, line.offset, payload))

    def apply(self, sent: InFlightRequest, outcome: Outcome) -> bool:
        """Handle the outcome of a request: settle its line, or schedule a retry.

        Return True if the line is settled, False if it will be sent again. The decision depends on the
        outcome and on the number of earlier attempts.
        """
        circuit, begun = sent.dispatch.upstream.circuit, sent.dispatch.attempt
        since_sent = circuit.clock() - begun.sent_at
        seconds = since_sent if sent.job_since is None else max(time.time() - sent.job_since, 0.0)
        if outcome.verdict is SUCCESS:
            self.settle_success(sent, outcome, seconds)
            return True
        if outcome.verdict.category is Category.POLICY:
            return self._apply_hook_result(sent, outcome)
        return self._apply_failure(sent, outcome, seconds)

    def settle_success(self, sent: InFlightRequest, outcome: Outcome, seconds: float) -> None:
        """Store a successful response as the final result of its line.

        The success is also reported to the circuit breaker and the metrics.

        Args:
            sent: the line and the request that was sent for it.
            outcome: the backend's response.
            seconds: duration of the request.
        """
        upstream, usage = sent.dispatch.upstream, outcome.usage or tokens_of(outcome.body)
        if tokens := usage.input_tokens + usage.output_tokens:  # if no usage was reported, the estimate stays
            sent.permit.correct_charge(tokens)
        self.metrics.durations.append(seconds)
        if upstream.circuit.is_open:
            report_success(sent.dispatch)
        else:
            upstream.circuit.record_success(sent.dispatch.attempt)
        if upstream.model != self._model:
            self.metrics.fell_back(upstream.model)
        self.metrics.succeeded(upstream.backend.url, usage)
        payload = _response_line(sent.request, outcome)
        self._writer.add(SegmentRecord(RecordKind.SETTLED, sent.line.offset, payload, True, usage))

    def _apply_hook_result(self, sent: InFlightRequest, outcome: Outcome) -> bool:
        """Handle an outcome that does not come from a backend but from a hook (the operator's own function).

        Return True if the line is settled, False if it will be retried. The circuit breaker is not changed,
        because no request was sent to the backend.
        """
        line = sent.line
        sent.dispatch.upstream.circuit.record_abort(sent.dispatch.attempt)
        if outcome.verdict.budget is Budget.ATTEMPT:
            self.attempts.use(line, outcome)
            if not self.attempts.are_exhausted(line):
                self.metrics.retried(outcome.verdict.category)
                return False
            self._add_dead_letter(line, sent.request, outcome, line.attempt.count)
        self.metrics.settled_unsent(outcome.code)
        self._settle_error(sent, outcome)
        return True

    def _apply_failure(self, sent: InFlightRequest, outcome: Outcome, seconds: float) -> bool:
        line, dispatch, attribution = sent.line, sent.dispatch, self.attribution
        circuit, begun = dispatch.upstream.circuit, dispatch.attempt
        is_job_running = line.attempt.job is not None and outcome.verdict.budget in BACKEND_AT_FAULT
        if not is_job_running:
            self.metrics.durations.append(seconds)
        budget = attribution.charged_budget(line, outcome, dispatch)
        line.tried_at = begun.sent_at
        if budget is Budget.SETTLED:
            report_success(dispatch)
        elif budget is Budget.ATTEMPT:
            if line.is_backend_alive and circuit.is_open:  # the next trial is not due at once
                attribution.record_backend_failure(dispatch, outcome, short_pauses=True)
            circuit.record_abort(begun)
            self.attribution.record_error(sent.dispatch, outcome)
            self.attempts.use(line, outcome)
        else:
            attribution.record_backend_failure(dispatch, outcome, short_pauses=line.is_backend_alive)
            self.attempts.wait_for_capacity(line, outcome)
        if budget is not Budget.SETTLED:
            if not self.attempts.are_exhausted(line):
                self.metrics.retried(outcome.verdict.category)
                if line.attempt.sending_attempt:
                    self.attempts.mark_sending(line, "")  # no worker crash: the line is not suspect
                return False
            self._add_dead_letter(line, sent.request, outcome, line.attempt.count)
        self.metrics.failed()
        self._settle_error(sent, outcome)
        return True

    def _settle_error(self, sent: InFlightRequest, outcome: Outcome) -> None:
        request = sent.request
        if outcome.status:
            payload = _response_line(request, outcome)
        else:
            message = f"{outcome.message} {outcome.detail}".rstrip()
            payload = output_lines.error_line(request.request_id, request.custom_id, outcome.code, message)
        self._writer.add(SegmentRecord(RecordKind.SETTLED, sent.line.offset, payload))

    def _add_dead_letter(
        self, line: SliceLine, request: OutboundRequest, outcome: Outcome, attempts: int
    ) -> None:
        """Record why a line has finally failed. This record is called a dead letter.

        The caller must add the line's result right afterwards, so that both are stored in the same segment
        (an object with many results).

        Args:
            attempts: number of the line's attempts, or of crashes if the line failed because workers crashed.
        """
        last = FinalAttempt(
            count=attempts,
            failed_at=time.time(),
            custom_id=request.custom_id,
            model=self._model,
            status=outcome.status,
            code="" if outcome.status else outcome.code,
            error=error_summary(outcome.status, outcome.body) if outcome.status else outcome.operator_message,
        )
        self.metrics.dead_letter(last.code or "http_error")
        payload = last.model_dump_json().encode()
        self._writer.add(SegmentRecord(RecordKind.ATTEMPT, line.offset, payload, final=True))


def _response_line(request: OutboundRequest, outcome: Outcome) -> bytes:
    return output_lines.result_line(
        request.request_id,
        request.custom_id,
        status_code=outcome.status,
        backend_request_id=outcome.backend_request_id,
        body=outcome.body,
        known_json=outcome.verdict is SUCCESS,
    )
