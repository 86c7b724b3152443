"""Interceptor that runs around every activity: metrics, and limited retries of unknown exceptions.

A step is an activity, such as the ingestion of a batch or the execution of a slice. If a dependency such as
the database is unavailable, the step is retried until its timeout. An unknown exception would probably occur
in every attempt. So after MAX_UNEXPECTED_FAILURES attempts with an unknown exception, the step and its batch
fail permanently.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, FailureError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from batchwright.activities.errors import failure, failure_of
from batchwright.activities.heartbeat import failure_count_details, previous_failures
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.execution import RELEASED, SliceResult
from batchwright.contracts.temporal_payloads.finalization import FinalizeResult
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.terms import BatchStatus
from batchwright.telemetry.labels import OTHER
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

INGEST, SLICE, FINALIZE, END = "ingest", "run_slice", "finalize", "end"
_BATCH_STATUS = {INGEST: "validating", SLICE: "in_progress", FINALIZE: "finalizing"}
# Metric labels of a recovered step (status before, outcome), by the status with which its batch ended.
_RECOVERED_ENDS = {
    BatchStatus.COMPLETED: ("finalizing", "finalized"),
    BatchStatus.CANCELLED: ("cancelling", "cancelled"),
    BatchStatus.EXPIRED: ("in_progress", "expired"),
}

MAX_UNEXPECTED_FAILURES = 5


# --- metrics


class ActivityMetricsInterceptor(Interceptor):
    """The interceptor that records metrics of activity attempts.

    It counts the slots in use (running activities), failures, and work that was taken over from lost workers.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return ActivityMetricsInbound(next, self._metrics)


def register_slot_gauges(metrics: Metrics, slots: Callable[[], int]) -> None:
    """Compute two gauges each time the metrics are read: the number of slots, and the fraction in use.

    A slot is a place for one running activity.

    Args:
        metrics: metrics of the process.
        slots: returns how many activities the process can run at the same time.
    """

    def saturation() -> float:
        total = slots()
        return metrics.active_workers.only.value / total if total else 0.0

    metrics.total_workers.set_function(slots)
    metrics.saturation.set_function(saturation)


class _HeartbeatRecorder(ActivityOutboundInterceptor):
    """An interceptor that remembers the details of an activity's latest heartbeat.

    Temporal keeps only the details of the last heartbeat. If an attempt fails or is cancelled, the worker
    sends one more heartbeat. This heartbeat repeats the remembered details, so that the details are not lost.
    """

    def __init__(self, next: ActivityOutboundInterceptor) -> None:
        super().__init__(next)
        self.last: tuple[object, ...] = ()

    def heartbeat(self, *details: object) -> None:
        self.last = details
        super().heartbeat(*details)


@dataclass
class _Attempt:
    """The running attempt of an activity.

    Attributes:
        step: name of the activity.
        is_of_batch: True for an activity of a batch, False for other activities such as retention.
        took_over: True if the previous attempt ended because its worker was lost, so that this worker
            continues its work. Always False if `is_of_batch` is False.
        unexpected_failures: number of attempts that ended with an unknown exception.
    """

    step: str
    is_retry: bool
    is_of_batch: bool
    took_over: bool
    unexpected_failures: int

    @classmethod
    def current(cls) -> "_Attempt":
        info = activity.info()
        step, is_retry, details = info.activity_type, info.attempt > 1, info.heartbeat_details
        is_of_batch = step in (*_BATCH_STATUS, END)
        took_over = is_retry and RELEASED not in details and is_of_batch
        return cls(step, is_retry, is_of_batch, took_over, previous_failures(details))


class ActivityMetricsInbound(ActivityInboundInterceptor):
    """The code around an attempt of an activity. It records metrics and translates exceptions to failures."""

    def __init__(self, next: ActivityInboundInterceptor, metrics: Metrics) -> None:
        super().__init__(next)
        self._metrics = metrics
        self._heartbeats: _HeartbeatRecorder | None = None

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._heartbeats = _HeartbeatRecorder(outbound)
        super().init(self._heartbeats)

    async def execute_activity(self, input: ExecuteActivityInput) -> object:
        attempt = _Attempt.current()
        slots = 1 if attempt.step in _BATCH_STATUS else 0  # `end` takes no slot
        self._metrics.active_workers.inc(slots)
        try:
            result: object = await super().execute_activity(input)
        except (FailureError, asyncio.CancelledError) as error:
            self._on_failure(attempt, error)
            raise
        except Exception as error:
            translated = translate_error(error, attempt.step, attempt.unexpected_failures + 1)
            attempt.unexpected_failures += translated.type == Failure.UNEXPECTED
            self._on_failure(attempt, translated)
            raise translated from error
        finally:
            self._metrics.active_workers.dec(slots)
        if attempt.took_over:
            self._metrics.recoveries.labels(*_recovery(result)).inc()
        if attempt.step == FINALIZE and attempt.is_retry:
            self._metrics.finalization_retries.labels("success").inc()
        return result

    def _on_failure(self, attempt: _Attempt, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._record_end(attempt)
            self._count_release(attempt, None)
            return
        kind = None  # stays None if the failure is unknown
        if isinstance(error, ApplicationError) and error.type in list(Failure):
            kind = Failure(error.type)
        if kind is Failure.OWNERSHIP_LOST:
            self._metrics.step_failures.labels(attempt.step, kind).inc()
            return
        self._record_end(attempt)
        is_benign = isinstance(error, ApplicationError) and error.category is ApplicationErrorCategory.BENIGN
        if is_benign:
            self._count_release(attempt, None)
        else:
            self._count_failure(attempt, error, kind)
        if attempt.took_over:
            action = "re_enqueued" if is_benign else "error"
            self._metrics.recoveries.labels(_BATCH_STATUS.get(attempt.step, "unknown"), action).inc()

    def _record_end(self, attempt: _Attempt) -> None:
        """Send a last heartbeat with the detail RELEASED, to show that this attempt did not crash.

        The heartbeat of a slice also contains the number of the attempt. With this number, a later attempt
        can count the attempts that crashed before their first heartbeat.
        """
        last = self._heartbeats.last if self._heartbeats else ()
        if attempt.step == SLICE and not last:
            last = (SliceResult(attempt=activity.info().attempt),)
        activity.heartbeat(*last, *failure_count_details(attempt.unexpected_failures), RELEASED)

    def _count_failure(self, attempt: _Attempt, error: BaseException, kind: Failure | None) -> None:
        self._metrics.step_failures.labels(attempt.step, kind or OTHER).inc()
        if not attempt.is_of_batch:
            return
        if attempt.step == FINALIZE and attempt.is_retry:
            self._metrics.finalization_retries.labels("error").inc()
        if not (isinstance(error, ApplicationError) and error.non_retryable):
            is_transient = kind is Failure.DATABASE_UNAVAILABLE
            self._count_release(attempt, "db_transient" if is_transient else "system_error")

    def _count_release(self, attempt: _Attempt, reason: str | None) -> None:
        """Count an attempt that ended before its work was finished. Temporal then starts another attempt.

        If the worker is shutting down and the activity belongs to a batch, the attempt is counted with the
        shutdown as the reason. In all other cases, the attempt is counted only if `reason` is not None.

        Args:
            attempt: the attempt of the activity.
            reason: why the attempt ended, as a metric label; None if it ended as planned, for example by a
                cancel or at its time limit.
        """
        if activity.is_worker_shutdown() and attempt.is_of_batch:
            reason = "guard_shutdown"
        if reason is not None:
            self._metrics.jobs_processed.labels("re_enqueued", reason).inc()


def _recovery(result: object) -> tuple[str, str]:
    """Return the metric labels (batch status, outcome) of an activity taken over from a lost worker.

    The batch status is the status that the batch had during the activity.

    Args:
        result: the result of the activity, which this worker has finished.
    """
    match result:
        case IngestResult(failed=failed):
            return "validating", "failed" if failed else "re_enqueued"
        case FinalizeResult(status=status):
            return _RECOVERED_ENDS.get(status, ("in_progress", "failed"))
        case BatchStatus():  # `end` returns it for a batch that was never ingested
            return _RECOVERED_ENDS.get(result, ("validating", "failed"))
        case _:
            return "in_progress", "re_enqueued"


# --- bounded retries of unknown exceptions


def translate_error(error: Exception, step: str, failures: int) -> ApplicationError:
    """Translate an exception into the failure that the activity should raise to Temporal.

    An error of a known kind, such as an unavailable database, becomes the failure of this kind. Every other
    error is logged and becomes a failure of the type UNEXPECTED.

    Args:
        error: the exception that ended the attempt.
        step: name of the activity, for the log.
        failures: number of attempts that ended with an unknown exception, including this attempt. At
            MAX_UNEXPECTED_FAILURES, the failure is not retried.
    """
    if (kind := failure_of(error)) is not None:
        return failure(kind, str(error))
    is_last = failures >= MAX_UNEXPECTED_FAILURES
    logger.error(
        "a step failed with an unexpected exception",
        exc_info=error,
        extra={"step": step, "failures": failures, "is_retried": not is_last},
    )
    return ApplicationError(
        f"An internal error ended {failures} attempts ({type(error).__name__}). "
        "The operator finds its traceback in the workers' log under the id of the batch.",
        type=Failure.UNEXPECTED,
        non_retryable=is_last,
        next_retry_delay=timedelta(seconds=2 ** (failures - 1)),
    )
