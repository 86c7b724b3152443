"""What an outcome does to a line: settled, or asked again later (R8)."""

import logging
import time
from typing import NamedTuple

from activities.ingest.access import not_allowed
from activities.slices.sink import SegmentSink
from activities.slices.work import Line
from batchwright.contracts.errors import LINE_MESSAGES, LineCode
from batchwright.contracts.execution import SliceRequest
from batchwright.inference.circuit import Circuit, Try
from batchwright.inference.client import Outcome
from batchwright.rules import answers, ids
from batchwright.rules.lines import LineDamaged, read_request
from batchwright.rules.plan import PlanDamaged
from batchwright.rules.retries import MAX_CAPACITY_BACKOFF, SUCCESS, Budget, Category, backoff
from batchwright.rules.segments import Kind, Record
from batchwright.rules.usage import usage_of
from batchwright.settings import Settings
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
_WORTH_STORING_SECONDS = 2.0


class Request(NamedTuple):
    request_id: str
    custom_id: str
    body: bytes


class Judge:
    """Of one slice: makes its requests, and records what becomes of them in its sink."""

    def __init__(
        self,
        request: SliceRequest,
        *,
        sink: SegmentSink,
        circuit: Circuit,
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        self._batch_id, self._model = request.batch_id, request.model
        self._sink, self._circuit, self._settings = sink, circuit, settings
        self._seconds = metrics.request_seconds.labels(request.model)
        self._errors = metrics.request_errors.labels(request.model)
        self._prompt = metrics.prompt_tokens.labels(request.model)
        self._generated = metrics.generation_tokens.labels(request.model)
        self._retries = metrics.retries
        self._results = [
            (
                metrics.results.labels(request.model, result),
                metrics.tenant_results.labels(metrics.tenants(request.tenant), result),
            )
            for result in ("error", "success")
        ]

    def request(self, line: Line, data: bytes) -> Request:
        """Raises PlanDamaged: the line is none that ingestion accepted."""
        try:
            custom_id, body = read_request(data)
        except LineDamaged as error:
            raise PlanDamaged(f"{self._batch_id}: the line at {line.offset}: {error}") from error
        return Request(ids.request_id(self._batch_id, line.offset), custom_id, body)

    def reject(self, line: Line, data: bytes) -> None:
        """Settles a line that may not be sent. Raises PlanDamaged."""
        request = self.request(line, data)
        message = not_allowed(self._model)
        payload = answers.error_line(request.request_id, request.custom_id, LineCode.POLICY_REJECTED, message)
        self._errors.inc()
        self._sink.add(Record(Kind.SETTLED, line.offset, payload))

    def settle(self, line: Line, request: Request, outcome: Outcome, begun: Try) -> bool:
        """Whether the line has its final result; if not, its attempt says when it may be asked again."""
        if outcome.verdict.category is Category.POLICY:
            return self._settle_unsent(line, request, outcome, begun)
        self._seconds.observe(self._circuit.clock() - begun.sent_at)
        budget = self._budget(line, request, outcome, begun)
        line.tried_at = begun.sent_at
        if budget is Budget.SETTLED:
            self._succeeded(begun)
        elif budget is Budget.ATTEMPT:
            self._circuit.aborted(begun)
            self._failed(line, outcome)
        else:
            self._refused(line, outcome, begun, blocked=budget is Budget.BLOCKED)
        if budget is not Budget.SETTLED and not self._is_given_up(line):
            self._retries.labels(self._model, outcome.verdict.category).inc()
            if line.attempt.noted_by:
                self.note(line, "")  # the worker is still there
            return False
        self._sink.add(self._record(line, request, outcome))
        return True

    def note(self, line: Line, by: str) -> None:
        """That an attempt is about to ask the line, or, with nothing, that it is not."""
        line.attempt = line.attempt.model_copy(update={"noted_by": by})
        self._write_down(line)

    def crashed(self, line: Line, data: bytes) -> None:
        """Settles a line that worker after worker died of."""
        request, code = self.request(line, data), LineCode.WORKER_CRASHED
        logger.warning("a line is given up: workers died of it", extra={"offset": line.offset})
        payload = answers.error_line(request.request_id, request.custom_id, code, LINE_MESSAGES[code])
        for counter in self._results[False]:
            counter.inc()
        self._errors.inc()
        self._sink.add(Record(Kind.SETTLED, line.offset, payload))

    def _settle_unsent(self, line: Line, request: Request, outcome: Outcome, begun: Try) -> bool:
        """What a hook did to a line tells nothing of the backend."""
        self._circuit.aborted(begun)
        if outcome.verdict.budget is Budget.ATTEMPT:
            self._failed(line, outcome)
            if not self._is_given_up(line):
                self._retries.labels(self._model, outcome.verdict.category).inc()
                return False
        self._sink.add(self._record(line, request, outcome))
        return True

    def _budget(self, line: Line, request: Request, outcome: Outcome, begun: Try) -> Budget:
        budget = outcome.verdict.budget
        if budget is not Budget.ATTEMPT:
            return budget
        since = begun.sent_at if line.tried_at is None else line.tried_at
        proved = line.attempt.count > 0
        blamed = self._circuit.blames_backend(request.request_id, since=since, proved=proved)
        return Budget.CAPACITY if blamed else Budget.ATTEMPT

    def _succeeded(self, begun: Try) -> None:
        seconds = self._circuit.open_seconds
        self._circuit.succeeded(begun)
        if seconds and not self._circuit.is_open:
            logger.info("a model's backend answers again", extra={"seconds": seconds})

    def _failed(self, line: Line, outcome: Outcome) -> None:
        """An attempt is used; written down, so that it survives the turn and the worker."""
        settings, count = self._settings, line.attempt.count + 1
        wait = backoff(count, initial=settings.initial_backoff_seconds, longest=settings.max_backoff_seconds)
        not_before = time.time() + max(wait, outcome.retry_after or 0.0)
        changes = {"count": count, "not_before": not_before, "error": outcome.message[:200]}
        line.attempt = line.attempt.model_copy(update=changes)
        if count < settings.max_attempts:
            self._write_down(line)

    def _refused(self, line: Line, outcome: Outcome, begun: Try, *, blocked: bool) -> None:
        """Capacity: no attempt is used; the model's circuit may open."""
        asked = outcome.retry_after or 0.0
        reason = "authentication" if blocked else outcome.message
        was_open = self._circuit.is_open
        self._circuit.failed(begun, reason, at_once=blocked, pause=asked)
        if self._circuit.is_open and not was_open:
            logger.warning("a model's backend takes nothing for now", extra={"reason": reason})
        line.refusals += 1
        initial = self._settings.initial_backoff_seconds
        wait = backoff(line.refusals, initial=initial, longest=MAX_CAPACITY_BACKOFF)
        now, since = time.time(), line.attempt.waiting_since
        line.attempt = line.attempt.model_copy(
            update={"not_before": now + max(wait, asked), "waiting_since": since or now}
        )
        if asked > _WORTH_STORING_SECONDS or (self._settings.give_up_after_seconds and not since):
            self._write_down(line)

    def _write_down(self, line: Line) -> None:
        self._sink.add(Record(Kind.ATTEMPT, line.offset, line.attempt.model_dump_json().encode()))

    def _is_given_up(self, line: Line) -> bool:
        if line.attempt.count >= self._settings.max_attempts:
            return True
        patience, since = self._settings.give_up_after_seconds, line.attempt.waiting_since
        return bool(patience and since) and time.time() - since >= patience

    def _record(self, line: Line, request: Request, outcome: Outcome) -> Record:
        success = 200 <= outcome.status < 300
        for counter in self._results[success]:
            counter.inc()
        if success:
            usage = usage_of(outcome.body)
            self._prompt.inc(usage.input_tokens)
            self._generated.inc(usage.output_tokens)
            return Record(Kind.SETTLED, line.offset, _answered(request, outcome), True, usage)
        self._errors.inc()
        if outcome.status:
            return Record(Kind.SETTLED, line.offset, _answered(request, outcome))
        payload = answers.error_line(request.request_id, request.custom_id, outcome.code, outcome.message)
        return Record(Kind.SETTLED, line.offset, payload)


def _answered(request: Request, outcome: Outcome) -> bytes:
    return answers.result_line(
        request.request_id,
        request.custom_id,
        status_code=outcome.status,
        backend_request_id=outcome.backend_request_id,
        body=outcome.body,
        known_json=outcome.verdict is SUCCESS,
    )
