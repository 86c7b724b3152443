"""What an outcome does to a line: settled, or asked again later (R8)."""

import logging
import time

from msgspec import Struct

from activities.slices.sink import SegmentSink
from activities.slices.tally import Tally
from activities.slices.work import Job, Line
from batchwright.contracts.errors import LINE_MESSAGES, LineCode
from batchwright.contracts.execution import SliceRequest
from batchwright.inference.outcomes import Outcome
from batchwright.inference.routes import Sending
from batchwright.rules import answers, ids
from batchwright.rules.dead_letters import LastAttempt, said
from batchwright.rules.lines import LineDamaged, read_request
from batchwright.rules.plan import PlanDamaged
from batchwright.rules.retries import (
    ANSWER_BROKE,
    MAX_CAPACITY_BACKOFF,
    NOT_NOW,
    SUCCESS,
    Budget,
    Category,
    Retries,
    backoff,
    within,
)
from batchwright.rules.segments import Kind, Record
from batchwright.rules.usage import tokens_of
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
_WORTH_STORING_SECONDS = 2.0


class Request(Struct, eq=False):
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
        retries: Retries,
        metrics: Metrics,
        tally: Tally,
    ) -> None:
        self._batch_id, self._model = request.batch_id, request.model
        self._request_ids = ids.RequestIds(request.batch_id)
        self._sink, self._patience, self._tally = sink, retries, tally
        self._closes_at = request.closes_at.timestamp()
        self._retries, self._fallbacks, self._dead = metrics.retries, metrics.fallbacks, metrics.dead_letters

    def show(self) -> None:
        """In /metrics, what became of lines since the last time."""
        self._tally.show()

    def request(self, line: Line, data: bytes) -> Request:
        """Raises PlanDamaged: the line is none that ingestion accepted."""
        try:
            custom_id, body = read_request(data)
        except LineDamaged as error:
            raise PlanDamaged(f"{self._batch_id}: the line at {line.offset}: {error}") from error
        return Request(self._request_ids.of(line.offset), custom_id, body)

    def reject(self, line: Line, data: bytes, message: str) -> None:
        """Settles a line that may not be sent. Raises PlanDamaged."""
        request = self.request(line, data)
        payload = answers.error_line(request.request_id, request.custom_id, LineCode.POLICY_REJECTED, message)
        self._tally.errors.inc()
        self._sink.add(Record(Kind.SETTLED, line.offset, payload))

    def settle(
        self,
        line: Line,
        request: Request,
        outcome: Outcome,
        sending: Sending,
        *,
        job_since: float | None = None,
    ) -> bool:
        """Whether the line has its final result; if not, its attempt says when it may be asked again.

        `job_since`: its job was submitted then, in Unix seconds, by an earlier turn or worker.
        """
        circuit, begun = sending.lane.circuit, sending.begun
        sent_for = circuit.clock() - begun.sent_at
        seconds = sent_for if job_since is None else max(time.time() - job_since, 0.0)
        if outcome.verdict is SUCCESS:
            self.keep(line, request, outcome, sending, seconds)
            return True
        if outcome.verdict.category is Category.POLICY:
            return self._settle_unsent(line, request, outcome, sending)
        return self._settle_failure(line, request, outcome, sending, seconds)

    def _settle_failure(
        self, line: Line, request: Request, outcome: Outcome, sending: Sending, seconds: float
    ) -> bool:
        """As `settle`, of what was sent and is no success after `seconds`."""
        circuit, begun = sending.lane.circuit, sending.begun
        if line.attempt.job is None or outcome.verdict.budget not in NOT_NOW:  # else its job goes on
            self._tally.took.append(seconds)
        budget = outcome.verdict.budget
        if budget is Budget.ATTEMPT:
            budget = self._blamed(line, request, outcome, sending)
        line.tried_at = begun.sent_at
        if budget is Budget.SETTLED:
            self._succeeded(sending)
        elif budget is Budget.ATTEMPT:
            circuit.aborted(begun)
            self._failed(line, outcome)
        else:
            self.lane_refused(outcome, sending)
            self._refused(line, outcome)
        if budget is not Budget.SETTLED and not self._is_given_up(line):
            self._retries.labels(self._model, outcome.verdict.category).inc()
            if line.attempt.noted_by:
                self.note(line, "")  # the worker is still there
            return False
        if budget is not Budget.SETTLED:
            self._bury(line, request, outcome, line.attempt.count)
        self._sink.add(self._record(line, request, outcome))
        return True

    def keep(self, line: Line, request: Request, outcome: Outcome, sending: Sending, seconds: float) -> None:
        """Settles a line by a success, which took `seconds`."""
        lane = sending.lane
        circuit, usage = lane.circuit, outcome.usage or tokens_of(outcome.body)
        self._tally.took.append(seconds)
        if circuit.is_open:
            self._succeeded(sending)
        else:
            circuit.succeeded(sending.begun)
        if lane.model != self._model:
            self._fallbacks.labels(self._model, lane.model).inc()
        self._tally.answered(lane.backend.url, usage)
        self._sink.add(Record(Kind.SETTLED, line.offset, _answered(request, outcome), True, usage))

    def note(self, line: Line, by: str) -> None:
        """That an attempt is about to ask the line, or, with nothing, that it is not."""
        line.attempt = line.attempt.model_copy(update={"noted_by": by})
        self._write_down(line)

    def submitted(self, line: Line, job: Job) -> None:
        """That a backend has taken a job for the line."""
        line.attempt = line.attempt.model_copy(update={"job": job})
        self._write_down(line, Kind.SUBMITTED)

    def job_ended(self, line: Line) -> None:
        """That it came to no answer: the next one is another job."""
        line.attempt = line.attempt.model_copy(update={"job": None, "jobs": line.attempt.jobs + 1})
        self._write_down(line)

    def crashed(self, line: Line, data: bytes) -> None:
        """Settles a line that worker after worker died of."""
        request, code = self.request(line, data), LineCode.WORKER_CRASHED
        outcome = Outcome(ANSWER_BROKE, code=code, message=LINE_MESSAGES[code])
        logger.warning("a line is given up: workers died of it", extra={"offset": line.offset})
        payload = answers.error_line(request.request_id, request.custom_id, code, LINE_MESSAGES[code])
        self._tally.failed()
        self._bury(line, request, outcome, line.attempt.crashes)
        self._sink.add(Record(Kind.SETTLED, line.offset, payload))

    def _settle_unsent(self, line: Line, request: Request, outcome: Outcome, sending: Sending) -> bool:
        """What a hook did to a line tells nothing of the backend."""
        sending.lane.circuit.aborted(sending.begun)
        if outcome.verdict.budget is Budget.ATTEMPT:
            self._failed(line, outcome)
            if not self._is_given_up(line):
                self._retries.labels(self._model, outcome.verdict.category).inc()
                return False
            self._bury(line, request, outcome, line.attempt.count)
        self._sink.add(self._record(line, request, outcome))
        return True

    def _bury(self, line: Line, request: Request, outcome: Outcome, attempts: int) -> None:
        """Notes beside its result that the line is given up, and why; both are in the same segment."""
        last = LastAttempt(
            count=attempts,
            failed_at=time.time(),
            custom_id=request.custom_id,
            model=self._model,
            status=outcome.status,
            code="" if outcome.status else outcome.code,
            error=said(outcome.status, outcome.body) if outcome.status else outcome.message,
        )
        self._dead.labels(self._model, last.code or "http_error").inc()
        self._sink.add(Record(Kind.ATTEMPT, line.offset, last.model_dump_json().encode(), final=True))

    def lane_refused(self, outcome: Outcome, sending: Sending) -> None:
        """A backend takes nothing: its circuit for the model may open."""
        circuit, blocked = sending.lane.circuit, outcome.verdict.budget is Budget.BLOCKED
        reason = outcome.verdict.category.value if blocked else outcome.message
        was_open = circuit.is_open
        circuit.failed(sending.begun, reason, at_once=blocked, pause=outcome.retry_after or 0.0)
        if circuit.is_open and not was_open:
            said = {"backend": sending.lane.backend.url, "reason": reason}
            logger.warning("a model's backend takes nothing for now", extra=said)

    def _blamed(self, line: Line, request: Request, outcome: Outcome, sending: Sending) -> Budget:
        since = sending.begun.sent_at if line.tried_at is None else line.tried_at
        blamed = sending.lane.circuit.blames_backend(
            request.request_id,
            since=since,
            proved=line.attempt.count > 0,
            vouched=line.vouched if outcome.is_unanswered else None,
        )
        return Budget.CAPACITY if blamed else Budget.ATTEMPT

    def _succeeded(self, sending: Sending) -> None:
        circuit = sending.lane.circuit
        was_open, since = circuit.is_open, circuit.opened_at
        circuit.succeeded(sending.begun)
        if was_open and not circuit.is_open:
            said = {"backend": sending.lane.backend.url, "seconds": circuit.clock() - since}
            logger.info("a model's backend answers again", extra=said)

    def _failed(self, line: Line, outcome: Outcome) -> None:
        """An attempt is used; written down, so that it survives the turn and the worker."""
        patience, count = self._patience, line.attempt.count + 1
        wait = backoff(count, initial=patience.initial_backoff, longest=patience.max_backoff)
        not_before = self._again(max(wait, outcome.retry_after or 0.0))
        changes = {"count": count, "not_before": not_before, "error": outcome.message[:200]}
        changes["unanswered"] = outcome.is_unanswered
        line.attempt = line.attempt.model_copy(update=changes)
        if count < patience.max_attempts:
            self._write_down(line)

    def _refused(self, line: Line, outcome: Outcome) -> None:
        """Capacity: no attempt is used."""
        asked = outcome.retry_after or 0.0
        line.refusals += 1
        wait = backoff(line.refusals, initial=self._patience.initial_backoff, longest=MAX_CAPACITY_BACKOFF)
        now, since = time.time(), line.attempt.waiting_since
        news = outcome.is_unanswered and not line.attempt.unanswered
        changes = {"not_before": self._again(max(wait, asked)), "waiting_since": since or now}
        changes["unanswered"] = news or line.attempt.unanswered
        line.attempt = line.attempt.model_copy(update=changes)
        if news or asked > _WORTH_STORING_SECONDS or (self._patience.give_up_after and not since):
            self._write_down(line)

    def _again(self, wait: float) -> float:
        """When a line that waits so long is asked again: never so late that the window is over."""
        now = time.time()
        return now + within(wait, self._closes_at - now)

    def _write_down(self, line: Line, kind: Kind = Kind.ATTEMPT) -> None:
        self._sink.add(Record(kind, line.offset, line.attempt.model_dump_json().encode()))

    def _is_given_up(self, line: Line) -> bool:
        if line.attempt.count >= self._patience.max_attempts:
            return True
        patience, since = self._patience.give_up_after, line.attempt.waiting_since
        return bool(patience and since) and time.time() - since >= patience

    def _record(self, line: Line, request: Request, outcome: Outcome) -> Record:
        """Of a failure that is final."""
        self._tally.failed()
        if outcome.status:
            return Record(Kind.SETTLED, line.offset, _answered(request, outcome))
        message = f"{outcome.message} {outcome.detail}".rstrip()
        payload = answers.error_line(request.request_id, request.custom_id, outcome.code, message)
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
