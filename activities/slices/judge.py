"""What an outcome does to a line: settled, or asked again later (R8)."""

import time
from dataclasses import dataclass

from activities.slices.sink import SegmentSink
from activities.slices.work import Attempt, Line
from batchwright.inference.circuit import Circuit
from batchwright.inference.client import Outcome
from batchwright.inference.limits import Permits
from batchwright.rules import answers, ids
from batchwright.rules.lines import parse_line
from batchwright.rules.segments import Kind, Record
from batchwright.rules.usage import usage_of
from batchwright.rules.verdicts import Budget, Category, backoff
from batchwright.settings import Settings
from batchwright.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Request:
    request_id: str
    custom_id: str
    body: bytes
    began: float


class Judge:
    def __init__(
        self,
        batch_id: str,
        model: str,
        *,
        sink: SegmentSink,
        circuit: Circuit,
        permits: Permits,
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        self._batch_id, self._model = batch_id, model
        self._sink, self._circuit, self._permits = sink, circuit, permits
        self._settings, self._metrics = settings, metrics
        self.last_failure = ""

    def request(self, line: Line, data: bytes) -> Request:
        parsed = parse_line(data)
        request_id = ids.request_id(self._batch_id, line.offset)
        return Request(request_id, parsed.custom_id, parsed.body, time.monotonic())

    def settle(self, line: Line, request: Request, outcome: Outcome) -> bool:
        """Whether the line has its final result; if not, its attempt says when it may be asked again."""
        self._metrics.request_seconds.labels(self._model).observe(time.monotonic() - request.began)
        budget = self._budget(request, outcome)
        if budget is Budget.SETTLED:
            self._answered()
        elif budget is Budget.ATTEMPT:
            self._circuit.aborted()
            line.attempt = self._next_attempt(line, outcome)
        else:
            self._refused(line, outcome, blocked=budget is Budget.BLOCKED)
        if budget is Budget.SETTLED or self._is_given_up(line):
            self._sink.add(self._record(line, request, outcome))
            return True
        self._metrics.retries.labels(outcome.verdict.category).inc()
        return False

    def _budget(self, request: Request, outcome: Outcome) -> Budget:
        budget = outcome.verdict.budget
        if budget is Budget.ATTEMPT and self._circuit.blames_backend(request.request_id):
            return Budget.CAPACITY
        return budget

    def _answered(self) -> None:
        self._circuit.succeeded()
        self._permits.answered(self._model)

    def _next_attempt(self, line: Line, outcome: Outcome) -> Attempt:
        """Written down, so that it survives the turn and the worker."""
        count = line.attempt.count + 1
        wait = self._wait(count, outcome)
        attempt = Attempt(
            count=count,
            not_before=time.time() + wait,
            waiting_since=line.attempt.waiting_since,
            error=outcome.message[:200],
        )
        if count < self._settings.max_attempts:
            payload = attempt.model_dump_json().encode()
            self._sink.add(Record(Kind.ATTEMPT, line.offset, payload))
        return attempt

    def _refused(self, line: Line, outcome: Outcome, *, blocked: bool) -> None:
        """Capacity: no attempt is used; the model's limit shrinks and its circuit may open."""
        line.refusals += 1
        self.last_failure = outcome.message
        self._circuit.failed("authentication" if blocked else outcome.message, at_once=blocked)
        if outcome.verdict.category in (Category.RATE_LIMIT, Category.SERVICE_UNAVAILABLE):
            self._permits.congested(self._model)
        now = time.time()
        line.attempt = line.attempt.model_copy(
            update={
                "not_before": now + self._wait(line.refusals, outcome),
                "waiting_since": line.attempt.waiting_since or now,
            }
        )

    def _wait(self, failures: int, outcome: Outcome) -> float:
        if outcome.retry_after is not None:
            return outcome.retry_after
        settings = self._settings
        return backoff(
            failures, initial=settings.initial_backoff_seconds, longest=settings.max_backoff_seconds
        )

    def _is_given_up(self, line: Line) -> bool:
        if line.attempt.count >= self._settings.max_attempts:
            return True
        patience, since = self._settings.give_up_after_seconds, line.attempt.waiting_since
        return bool(patience and since) and time.time() - since >= patience

    def _record(self, line: Line, request: Request, outcome: Outcome) -> Record:
        ids_ = (request.request_id, request.custom_id)
        if not outcome.status:
            payload = answers.error_line(*ids_, outcome.code, outcome.message)
        else:
            payload = answers.result_line(
                *ids_,
                status_code=outcome.status,
                backend_request_id=outcome.backend_request_id,
                body=outcome.body,
            )
        if not 200 <= outcome.status < 300:
            self._metrics.request_errors.labels(self._model).inc()
            return Record(Kind.SETTLED, line.offset, payload)
        usage = usage_of(outcome.body)
        self._metrics.prompt_tokens.labels(self._model).inc(usage.input_tokens)
        self._metrics.generation_tokens.labels(self._model).inc(usage.output_tokens)
        return Record(Kind.SETTLED, line.offset, payload, True, usage)
