"""Count the attempts of a slice's lines, schedule the next attempts, and store both with the results."""

import time

from batchwright.activities.execution.slice_state.line_queue import SliceLine, SubmittedJob
from batchwright.activities.execution.slice_state.segment_buffer import SegmentBuffer
from batchwright.contracts.temporal_payloads.execution import SliceRequest
from batchwright.inference.request_outcome import Outcome, quotable_error
from batchwright.rules.deadline import Deadline
from batchwright.rules.dispatch.retry_policy import (
    BUSY,
    MAX_CAPACITY_BACKOFF,
    RetryPolicy,
    backoff,
    within_deadline,
)
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord

_PERSISTED_WAIT_SECONDS = 2.0  # shorter waits for capacity are not worth a record


class LineAttempts:
    """The number of attempts of each line of a slice, and the time of its next attempt.

    The counts and times are stored with the results of the slice. The next attempt of the slice (turn)
    therefore knows the counts and times, even after a crash.
    """

    def __init__(self, request: SliceRequest, writer: SegmentBuffer, policy: RetryPolicy) -> None:
        self._deadline = Deadline.of(request.deadline)
        self._writer, self._policy = writer, policy

    def mark_sending(self, line: SliceLine, attempt: str) -> None:
        """Record that an attempt of the slice is about to send the line.

        If the worker crashes, the next attempt of the slice knows that this line may have been in flight.

        Args:
            attempt: text that identifies the attempt of the slice. If no attempt is about to send the line,
                pass an empty text to delete the record.
        """
        line.attempt = line.attempt.model_copy(update={"sending_attempt": attempt})
        self._persist(line)

    def record_job(self, line: SliceLine, job: SubmittedJob) -> None:
        """Record a job that a backend has accepted for the line.

        A later attempt of the slice (turn) can then wait for this job.
        """
        line.attempt = line.attempt.model_copy(update={"job": job})
        self._persist(line, RecordKind.SUBMITTED)

    def forget_job(self, line: SliceLine) -> None:
        """Record that the line's job ended without a result.

        The next attempt of the line then submits a new job.
        """
        line.attempt = line.attempt.model_copy(update={"job": None, "jobs": line.attempt.jobs + 1})
        self._persist(line)

    def use(self, line: SliceLine, outcome: Outcome) -> None:
        """Count one more failed attempt of the line, and set when it is sent again."""
        policy, count = self._policy, line.attempt.count + 1
        wait = backoff(count, initial=policy.initial_backoff, longest=policy.max_backoff)
        changes = {
            "count": count,
            "not_before": self._retry_at(max(wait, outcome.retry_after or 0.0)),
            "backend_error": quotable_error(outcome),
            "no_response": outcome.is_unanswered,
        }
        line.attempt = line.attempt.model_copy(update=changes)
        if count < policy.max_attempts:
            self._persist(line)

    def wait_for_capacity(self, line: SliceLine, outcome: Outcome) -> None:
        """Set when the line is sent again, because the backend has no capacity now. No attempt is counted.

        - If the backend is busy with direct requests of other clients, the wait is as long as the backend has
          requested. The limit on requests in flight is then adapted to the slots that the other clients leave
          free, and the line may have to wait for this limit, too.
        - In all other cases, the wait grows with each such failure of the line, and is at least as long as
          the backend has requested.

        The new time and the error are stored only if a later attempt of the slice (turn) needs them, for
        example because the backend has requested a long wait.
        """
        policy, before, now = self._policy, line.attempt, time.time()
        line.capacity_failures += 1
        wait = 0.0
        if outcome.verdict is not BUSY:
            longest = MAX_CAPACITY_BACKOFF
            wait = backoff(line.capacity_failures, initial=policy.initial_backoff, longest=longest)
        requested = outcome.retry_after or 0.0
        error = quotable_error(outcome)
        is_new = (outcome.is_unanswered and not before.no_response) or bool(
            error and not before.backend_error
        )
        line.attempt = before.model_copy(
            update={
                "not_before": self._retry_at(max(wait, requested)),
                "waiting_since": before.waiting_since or now,
                "backend_error": error or before.backend_error,
                "no_response": outcome.is_unanswered or before.no_response,
            }
        )
        starts_patience = policy.give_up_after and not before.waiting_since
        if is_new or requested > _PERSISTED_WAIT_SECONDS or starts_patience:
            self._persist(line)

    def _retry_at(self, wait: float) -> float:
        """Return when the next attempt is due after a wait, in Unix seconds.

        Args:
            wait: seconds to wait. It is shortened if the line would miss the deadline.
        """
        now = time.time()
        return now + within_deadline(wait, self._deadline.remaining(now))

    def are_exhausted(self, line: SliceLine) -> bool:
        """Return True if the line has used all its attempts, or if it has waited too long for capacity.

        The retry policy sets the two limits: `max_attempts` and `give_up_after`.
        """
        if line.attempt.count >= self._policy.max_attempts:
            return True
        longest, since = self._policy.give_up_after, line.attempt.waiting_since
        return bool(longest and since) and time.time() - since >= longest

    def _persist(self, line: SliceLine, kind: RecordKind = RecordKind.ATTEMPT) -> None:
        self._writer.add(SegmentRecord(kind, line.offset, line.attempt.model_dump_json().encode()))
