"""Counts the attempts of steps around the activities: slots in use, failures, takeovers from lost workers."""

import asyncio
from collections.abc import Callable

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import HANDED_BACK
from batchwright.contracts.finalization import FinalizeResult
from batchwright.contracts.ingestion import IngestResult
from batchwright.contracts.openai import BatchStatus
from batchwright.telemetry.labels import OTHER
from batchwright.telemetry.metrics import Metrics

INGEST, SLICE, FINALIZE, END = "ingest", "run_slice", "finalize", "end"
_ABOUT = {INGEST: "validating", SLICE: "in_progress", FINALIZE: "finalizing"}
_ENDS = {
    BatchStatus.COMPLETED: ("finalizing", "finalized"),
    BatchStatus.CANCELLED: ("cancelling", "cancelled"),
    BatchStatus.EXPIRED: ("in_progress", "expired"),
}


class StepCounter(Interceptor):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return Attempt(next, self._metrics)


def show_slots(metrics: Metrics, slots: Callable[[], int]) -> None:
    """How many there are, and how much of them is in use."""

    def saturation() -> float:
        total = slots()
        return metrics.active_workers.only.value / total if total else 0.0

    metrics.total_workers.set_function(slots)
    metrics.saturation.set_function(saturation)


class _Beats(ActivityOutboundInterceptor):
    """Remembers the last details: they stay visible beside the word."""

    def __init__(self, next: ActivityOutboundInterceptor) -> None:
        super().__init__(next)
        self.last: tuple[object, ...] = ()

    def heartbeat(self, *details: object) -> None:
        self.last = details
        super().heartbeat(*details)


class Attempt(ActivityInboundInterceptor):
    """One attempt of one step."""

    def __init__(self, next: ActivityInboundInterceptor, metrics: Metrics) -> None:
        super().__init__(next)
        self._metrics = metrics
        self._beats: _Beats | None = None

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._beats = _Beats(outbound)
        super().init(self._beats)

    async def execute_activity(self, input: ExecuteActivityInput) -> object:
        info = activity.info()
        self._step, self._is_retry = info.activity_type, info.attempt > 1
        self._is_of_batch = self._step in (*_ABOUT, END)
        lost = self._is_retry and HANDED_BACK not in info.heartbeat_details
        self._took_over = lost and self._is_of_batch
        slots = 1 if self._step in _ABOUT else 0  # an end without files takes none
        self._metrics.active_workers.inc(slots)
        try:
            result: object = await super().execute_activity(input)
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            self._metrics.active_workers.dec(slots)
        self._succeeded(result)
        return result

    def _succeeded(self, result: object) -> None:
        if self._took_over:
            self._metrics.recoveries.labels(*self._recovery(result)).inc()
        if self._step == FINALIZE and self._is_retry:
            self._metrics.finalization_retries.labels("success").inc()

    def _recovery(self, result: object) -> tuple[str, str]:
        match result:
            case IngestResult(failed=failed):
                return "validating", "failed" if failed else "re_enqueued"
            case FinalizeResult(status=status):
                return _ENDS.get(status, ("in_progress", "failed"))
            case BatchStatus():  # of `end`: nothing was ingested
                return _ENDS.get(result, ("validating", "failed"))
            case _:
                return "in_progress", "re_enqueued"

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._count_given_back(None)
            return
        kind = _kind(error)
        if kind is Failure.OWNERSHIP_LOST:
            self._metrics.step_failures.labels(self._step, kind).inc()
            return
        activity.heartbeat(*(self._beats.last if self._beats else ()), HANDED_BACK)
        benign = isinstance(error, ApplicationError) and error.category is ApplicationErrorCategory.BENIGN
        if benign:
            self._count_given_back(None)
        else:
            self._count_failure(error, kind)
        if self._took_over:
            action = "re_enqueued" if benign else "error"
            self._metrics.recoveries.labels(_ABOUT.get(self._step, "unknown"), action).inc()

    def _count_failure(self, error: BaseException, kind: Failure | None) -> None:
        self._metrics.step_failures.labels(self._step, kind or OTHER).inc()
        if not self._is_of_batch:
            return
        if self._step == FINALIZE and self._is_retry:
            self._metrics.finalization_retries.labels("error").inc()
        if not (isinstance(error, ApplicationError) and error.non_retryable):
            transient = kind is Failure.DATABASE_UNAVAILABLE
            self._count_given_back("db_transient" if transient else "system_error")

    def _count_given_back(self, reason: str | None) -> None:
        """Without a reason, as after a cancel or a turn, it is one only where the worker shuts down."""
        if activity.is_worker_shutdown() and self._is_of_batch:
            reason = "guard_shutdown"
        if reason is not None:
            self._metrics.jobs_processed.labels("re_enqueued", reason).inc()


def _kind(error: BaseException) -> Failure | None:
    """None for what nobody expected."""
    if isinstance(error, ApplicationError) and error.type in list(Failure):
        return Failure(error.type)
    return None
