"""Interceptor that runs around every activity, and reports why the activity's batch waits."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from batchwright.activities.services.waiting_reason_publisher import WaitingReasonPublisher
from batchwright.background import log_failure
from batchwright.contracts.errors import FAILURE_SENTENCES, Failure
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.execution import SliceRequest
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest
from batchwright.worker.interceptors.attempt_history import (
    CRASHES_BEFORE_QUARANTINE,
    last_attempt_crashed,
    step_crashes,
)

_INPUT_BLOCKED = "its input cannot be prepared now"
_LINES_BLOCKED = "its lines cannot be sent now"
_FILES_BLOCKED = "its files cannot be written now"
_EXPLAINED_FAILURES = (Failure.STORAGE_UNAVAILABLE, Failure.DATABASE_UNAVAILABLE, Failure.DEFERRED)
_NO_FAILURES = (Failure.CANCEL_ACCEPTED, Failure.TURN_OVER, Failure.OWNERSHIP_LOST)
_UNEXPLAINED = "an unexpected error, which is in the worker's log"
# For tenants. The unavailable dependency and its error are only in the worker's log and at `/readyz`.
_UNAVAILABLE = "object storage or the database does not answer"
_CRASHED = "the workers that tried it crashed"
_WATCH_INTERVAL_SECONDS = 1.0
_RUNNING_VALID_SECONDS = 5.0  # while the attempt runs, the reason is reported regularly
_RETRY_VALID_SECONDS = 60.0  # the longest pause between two attempts
_WHOLE_BATCH = ""  # used instead of a model's name


class WaitingReasonInterceptor(Interceptor):
    """The interceptor that reports why a batch waits: an activity is retried, or a dependency is unavailable.

    `failing` returns a text with the names of the required dependencies (such as the database) that the
    worker cannot reach now. The text is empty if the worker reaches all of them.
    """

    def __init__(self, reasons: WaitingReasonPublisher, failing: Callable[[], str] = str) -> None:
        self._reasons, self._failing = reasons, failing

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return WaitingReasonInbound(next, self._reasons, self._failing)


class _BatchReason:
    """The waiting reason that one attempt of an activity reports for its whole batch.

    Attributes:
        is_reported: True if a reason is reported and not cleared.
    """

    def __init__(self, reasons: WaitingReasonPublisher, order: BatchOrder) -> None:
        self._reasons, self._order = reasons, order
        self.is_reported = False

    def report(self, sentence: str, valid_seconds: float) -> None:
        self.is_reported = True
        self._reasons.report(self._order.tenant, self._order.batch_id, _WHOLE_BATCH, sentence, valid_seconds)

    def clear(self) -> None:
        self.is_reported = False
        self._reasons.clear(self._order.tenant, self._order.batch_id, _WHOLE_BATCH)


class WaitingReasonInbound(ActivityInboundInterceptor):
    """The code around one attempt of an activity. If the attempt fails, it reports why the batch waits."""

    def __init__(
        self, next: ActivityInboundInterceptor, reasons: WaitingReasonPublisher, failing: Callable[[], str]
    ) -> None:
        super().__init__(next)
        self._reasons, self._failing = reasons, failing

    async def execute_activity(self, input: ExecuteActivityInput) -> object:
        match input.args:
            case [BatchOrder() as order]:
                return await self._run_batch_step(order, _INPUT_BLOCKED, input)
            case [FinalizeRequest(order=order)]:
                return await self._run_batch_step(order, _FILES_BLOCKED, input)
            case [SliceRequest() as request]:
                return await self._run_slice(request, input)
            case _:
                return await super().execute_activity(input)

    async def _run_slice(self, request: SliceRequest, input: ExecuteActivityInput) -> object:
        """Run one attempt to send a slice (a part of a model's lines). Report a failure as a waiting reason.

        If the attempt fails with DEFERRED, this method reports nothing. DEFERRED means that no lines can be
        sent now, for example because no backend of the model accepts requests. The attempt has then already
        reported the reason. A later attempt clears the reason.
        """
        try:
            return await super().execute_activity(input)
        except Exception as error:
            is_deferred = isinstance(error, ApplicationError) and error.type == Failure.DEFERRED
            if not is_deferred and (reason := _waiting_reason(error)):
                sentence = f"{_LINES_BLOCKED}: {reason}"
                self._reasons.report(
                    request.tenant, request.batch_id, request.model, sentence, _RETRY_VALID_SECONDS
                )
            raise

    async def _run_batch_step(self, order: BatchOrder, blocked: str, input: ExecuteActivityInput) -> object:
        info = activity.info()
        waiting = _BatchReason(self._reasons, order)
        self._report_while_running(waiting, blocked)
        watching = asyncio.create_task(self._watch(waiting, blocked))
        watching.add_done_callback(log_failure)
        try:
            result: object = await super().execute_activity(input)
        except Exception as error:
            if isinstance(error, ApplicationError) and error.type == Failure.OVER_QUOTA:
                waiting.report(error.message, _RETRY_VALID_SECONDS)
            elif reason := _waiting_reason(error):
                waiting.report(f"{blocked}: {reason}", _RETRY_VALID_SECONDS)
            raise
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        if waiting.is_reported or info.attempt > 1:
            waiting.clear()
        return result

    async def _watch(self, waiting: _BatchReason, blocked: str) -> None:
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_SECONDS)
            self._report_while_running(waiting, blocked)

    def _report_while_running(self, waiting: _BatchReason, blocked: str) -> None:
        """Report why the batch waits although an attempt runs. The first rule that applies is used.

        - If a required dependency is unavailable, report this. An attempt may wait for a dependency for a
          long time without failing.
        - If the step (activity) is quarantined and its previous attempt crashed, report the crash. If the
          current attempt also crashes, the report stays valid until Temporal starts the next attempt.
        - In all other cases, clear the last report.

        Args:
            blocked: start of the reported sentence, such as "its files cannot be written now".
        """
        info = activity.info()
        if self._failing():
            waiting.report(f"{blocked}: {_UNAVAILABLE}", _RUNNING_VALID_SECONDS)
        elif _has_crashed_workers(info):
            unnoticed = info.heartbeat_timeout or timedelta()  # Temporal notices a crash after this time
            waiting.report(f"{blocked}: {_CRASHED}", unnoticed.total_seconds() + _RETRY_VALID_SECONDS)
        elif waiting.is_reported:
            waiting.clear()


def _has_crashed_workers(info: activity.Info) -> bool:
    """Return True if the activity's previous attempt crashed, and at least one earlier attempt crashed, too.

    An attempt has crashed if its worker was killed, froze or could not reach Temporal.
    """
    attempt, details = info.attempt, info.heartbeat_details
    crashes = step_crashes(attempt, details, info.started_time).crashes
    return crashes >= CRASHES_BEFORE_QUARANTINE and last_attempt_crashed(attempt, details)


def _waiting_reason(error: Exception) -> str:
    """Return why an activity waits for its next attempt, as text for tenants; empty if it does not wait.

    The activity does not wait if there is no next attempt, or if `error` is a planned end of the attempt and
    not a failure.
    """
    if not isinstance(error, ApplicationError):
        return _UNEXPLAINED
    if error.non_retryable or error.type in _NO_FAILURES:
        return ""
    if error.type and error.type in _EXPLAINED_FAILURES:
        return FAILURE_SENTENCES[error.type].removesuffix(".")
    return _UNEXPLAINED
