"""Run requests as jobs at backends.

A job is submitted once. Then its status is polled, or the backend calls back. The job's id is stored before
the first poll. If the worker crashes or the attempt of the slice ends, the next attempt reads the id and
waits for the same job.
"""

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Generator
from typing import NamedTuple

from batchwright.activities.execution.line_settlement import OutboundRequest
from batchwright.activities.execution.slice_state.lease import LeaseLost
from batchwright.activities.execution.slice_state.line_queue import SliceLine, SubmittedJob
from batchwright.activities.execution.slice_stop_signal import StopReason
from batchwright.activities.execution.turn_context import TurnContext
from batchwright.activities.services.backend_job_callbacks import CallbackFuture
from batchwright.activities.services.backend_job_cancellation import cancel_job, kind_label
from batchwright.contracts.errors import LineCode
from batchwright.contracts.model_registry.backend_job_config import JobConfig
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.callbacks import ReceivedCallback
from batchwright.inference import backend_job_messages
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.router import Dispatch
from batchwright.inference.transport.base import TargetUrl
from batchwright.inference.upstream import Upstream
from batchwright.rules.backends.backend_job_reports import JobReport, JobState, job_path
from batchwright.rules.backends.body_rewriting import INLINE_REWRITE_BYTES, with_string
from batchwright.rules.backends.callback_tokens import CallbackToken
from batchwright.rules.dispatch import retry_policy
from batchwright.rules.dispatch.retry_policy import BACKEND_AT_FAULT
from batchwright.storage.base import StorageUnavailable

_MAX_INCONCLUSIVE_POLLS = 3  # in a row; then the line waits for capacity and keeps its job
_CANCEL_SECONDS = 2.0
_CALLBACK_MARGIN_SECONDS = 2.0  # time to store a callback that arrived just in time
_FAILURE_RESULTS = {LineCode.JOB_LOST: "lost", LineCode.REQUEST_TIMEOUT: "overdue"}


class _LineJob(NamedTuple):
    """A line whose request runs as an asynchronous job at a backend.

    Attributes:
        config: the model's job settings when this attempt of the slice began to wait for the job. If the
            settings change later, the job is still handled by the old settings.
    """

    line: SliceLine
    request: OutboundRequest
    dispatch: Dispatch
    config: JobConfig

    @property
    def upstream(self) -> Upstream:
        return self.dispatch.upstream


class JobRunner:
    """The part of a turn that submits lines to backends as asynchronous jobs, and waits for their results.

    A turn is one attempt of a slice. Each turn has its own object.
    """

    def __init__(self, turn: TurnContext) -> None:
        worker, request = turn.worker, turn.request
        self._callbacks, self._max_bytes = worker.callbacks, worker.settings.max_response_bytes
        # Fixed for the turn, because a job's start and end must be counted with the same label.
        self._metrics, self._model = worker.metrics, worker.metrics.models(request.model)
        self._is_cancelled, self._batch = worker.is_cancelled, (request.tenant, request.batch_id)
        self._slice, self._router, self._headers = request, turn.router, turn.headers
        self._outcomes, self._writer, self._stop = turn.outcomes, turn.writer, turn.stop
        self._deadline, self._cost = turn.stop.deadline, turn.cost
        self._followed: dict[asyncio.Task[None], _LineJob] = {}
        self._received: list[str] = []  # callbacks of jobs that have ended

    async def run(self, line: SliceLine, request: OutboundRequest, dispatch: Dispatch) -> Outcome:
        """Submit a job for the line and wait until the job ends. Return the outcome of the job.

        If the backend does not accept the job, return the outcome of the request that submitted it.
        """
        submitted_at, upstream = time.time(), dispatch.upstream
        call = _LineJob(line, request, dispatch, _config_of(upstream))
        outcome = await self._submit(call, submitted_at)
        if outcome.verdict is not retry_policy.SUCCESS:
            return outcome
        report = backend_job_messages.from_submit(outcome, call.config, calls_back=upstream.calls_back)
        if isinstance(report, Outcome):
            return report
        if report.state is not JobState.RUNNING:
            ended = backend_job_messages.from_finished_job(
                report, backend_request_id=outcome.backend_request_id
            )
            return self._finalize(call, ended)
        self._metrics.jobs_submitted.labels(*self._labels(upstream)).inc()
        job = SubmittedJob(id=report.job_id, upstream=upstream.key, since=submitted_at)
        self._outcomes.attempts.record_job(line, job)
        with contextlib.suppress(StorageUnavailable, LeaseLost):  # buffered; the turn's last flush raises it
            await self._writer.flush_with_retry(lambda: self._stop.reason is None)
        return await self._follow(call, job)

    async def follow(
        self, line: SliceLine, request: OutboundRequest, dispatch: Dispatch, job: SubmittedJob
    ) -> Outcome:
        """Wait until `job`, which already runs for the line, ends. Return the outcome of the job.

        If the job ends without a result, return the failure as the outcome. The job's id is also removed from
        the line's stored record, so that the line's next attempt submits a new job.
        """
        return await self._follow(_LineJob(line, request, dispatch, _config_of(dispatch.upstream)), job)

    def release(self) -> None:
        """Stop waiting for jobs, because the slice has to end on this worker.

        The jobs continue at their backends, and the next attempt of the slice waits for them.
        """
        for task in self._followed:
            task.cancel()

    async def cancel(self) -> None:
        """Cancel this attempt's running jobs at their backends if their results can no longer be used.

        The results cannot be used after the deadline, after a cancel of the batch, or if the batch has
        reached the cap on its cost. If the attempt stops for another reason, such as a pause, the jobs keep
        running, and the next attempt of the slice waits for them.
        """
        reason, cost = self._stop.reason, self._cost
        if reason not in (StopReason.DEADLINE, StopReason.OVER_CAP, StopReason.CANCELLED):
            return
        calls = list(self._followed.values())
        if not calls:
            return
        self.release()
        with contextlib.suppress(TimeoutError, DatabaseUnavailable):
            async with asyncio.timeout(_CANCEL_SECONDS):
                is_over = reason is not StopReason.CANCELLED or (cost is not None and cost.ends_batch)
                if is_over or await self._is_cancelled(*self._batch):
                    await asyncio.gather(*(self._cancel_and_forget(call) for call in calls))

    async def forget(self) -> None:
        """Delete the stored callbacks for the jobs of this attempt.

        A callback is the HTTP request with which a backend reports the end of a job. Call this only after the
        results of these jobs are stored.
        """
        received, self._received = self._received, []
        await self._callbacks.forget(received)

    async def _submit(self, call: _LineJob, submitted_at: float) -> Outcome:
        body, config, request = call.request.body, call.config, call.request
        headers = self._headers
        if call.upstream.calls_back:
            url = self._callbacks.url(self._token(call, submitted_at))
            if not url:
                names = "BATCHWRIGHT_CALLBACK_URL or BATCHWRIGHT_CALLBACK_SECRET"
                message = f"The backend calls back, and {names} is not set for this worker."
                return Outcome(retry_policy.NOT_SENT, message=message)
            name = config.callback_header.lower().encode()
            headers = [*(one for one in headers if one[0] != name), (name, url.encode())]
            if config.callback_field:
                if len(body) > INLINE_REWRITE_BYTES:
                    body = await asyncio.to_thread(with_string, body, config.callback_field, url)
                else:
                    body = with_string(body, config.callback_field, url)
        # Each job of a line has its own idempotency key. Otherwise the backend could return the failed job.
        earlier = call.line.attempt.jobs
        key = f"{request.request_id}-{earlier}" if earlier else request.request_id
        path = config.submit_endpoint or self._slice.endpoint
        return await self._router.submit(call.upstream, path, body, request.request_id, key, headers)

    async def _follow(self, call: _LineJob, job: SubmittedJob) -> Outcome:
        line, upstream = call.line, call.upstream
        token = self._token(call, job.since)
        with self._registered(call), self._subscribed(upstream, token) as callback:
            outcome = self._finalize(call, await self._watch(call, job, callback))
        if outcome.verdict.budget in BACKEND_AT_FAULT:
            return outcome
        is_success = outcome.verdict is retry_policy.SUCCESS
        result = "completed" if is_success else _FAILURE_RESULTS.get(outcome.code, "failed")
        self._metrics.jobs_ended.labels(*self._labels(upstream), result).inc()
        self._metrics.job_seconds.labels(*self._labels(upstream)).observe(max(time.time() - job.since, 0.0))
        if not is_success:
            self._outcomes.attempts.forget_job(line)
        if upstream.calls_back:
            self._received.append(token.id)
        return outcome

    async def _watch(self, call: _LineJob, job: SubmittedJob, callback: CallbackFuture | None) -> Outcome:
        """Wait until a job ends, takes too long, or cannot be polled. Return the outcome of its line.

        Before a failure is returned, check once more for the backend's callback (the request that reports the
        end of the job). If the callback has arrived, return the outcome that the callback reports.

        Args:
            call: the line, with the request that `job` runs for it.
            callback: future for the backend's callback; None if the backend does not call back.
        """
        outcome = await self._poll_until_end(call, job, callback)
        if callback is not None and (outcome is None or outcome.verdict is not retry_policy.SUCCESS):
            await self._callbacks.read_now(self._token(call, job.since).id)
            if callback.done():
                return self._outcome_of(callback.result(), call.config, job)
        if outcome is None:
            await self._cancel_at_backend(call, job)
            return backend_job_messages.poll_timeout(call.config, job.id)
        return outcome

    def _outcome_of(self, received: ReceivedCallback, config: JobConfig, job: SubmittedJob) -> Outcome:
        if received.body is None:
            return backend_job_messages.callback_too_large(received.size, self._max_bytes)
        report = backend_job_messages.from_callback(received.body, config)
        return (
            report if isinstance(report, Outcome) else backend_job_messages.from_finished_job(report, job.id)
        )

    async def _poll_until_end(
        self, call: _LineJob, job: SubmittedJob, callback: CallbackFuture | None
    ) -> Outcome | None:
        """Poll a job until it ends, or until polling has failed too often. Return the outcome of its line.

        Return None if the callback has arrived, or if the job takes too long.
        """
        config = call.config
        margin = 0.0 if callback is None else _CALLBACK_MARGIN_SECONDS
        until, wait, inconclusive = job.since + config.max_poll_time + margin, config.poll_interval, 0
        while not await _is_called(callback, min(wait, max(until - time.time(), 0.0))):
            found = await self._poll(call, job)
            if isinstance(found, JobReport):
                if found.state is not JobState.RUNNING:
                    return backend_job_messages.from_finished_job(found, job.id)
                inconclusive, wait = 0, config.poll_interval
            elif found.verdict is retry_policy.RESPONSE_TOO_LARGE:
                return found
            else:
                inconclusive, wait = inconclusive + 1, max(config.poll_interval, found.retry_after or 0.0)
                if inconclusive >= _MAX_INCONCLUSIVE_POLLS:
                    return backend_job_messages.from_failed_polls(found, job.id)
                if found.verdict.budget in BACKEND_AT_FAULT:
                    if not call.dispatch.attempt.is_trial:  # a trial fails once, at its end
                        self._outcomes.attribution.record_backend_failure(call.dispatch, found)
                    continue
            if time.time() >= until:
                break
        return None

    async def _poll(self, call: _LineJob, job: SubmittedJob) -> JobReport | Outcome:
        upstream, config = call.upstream, call.config
        if not config.poll_endpoint_template or not job.id:
            return backend_job_messages.JOB_RUNNING
        target = TargetUrl.of(upstream.backend.url + job_path(config.poll_endpoint_template, job.id))
        found = backend_job_messages.from_poll(
            await upstream.backend.client.poll_job(b"GET", target, call.request.request_id, self._headers),
            config,
        )
        if isinstance(found, JobReport):
            upstream.circuit.reset_failures()
        result = "ok" if isinstance(found, JobReport) else "inconclusive"
        self._metrics.jobs_polled.labels(*self._labels(upstream), result).inc()
        return found

    async def _cancel_at_backend(self, call: _LineJob, job: SubmittedJob) -> bool:
        return await cancel_job(call.upstream, call.config, job.id, call.request.request_id, self._headers)

    async def _cancel_and_forget(self, call: _LineJob) -> None:
        job = call.line.attempt.job
        if job is not None and await self._cancel_at_backend(call, job):
            self._metrics.jobs_ended.labels(*self._labels(call.upstream), "given_up").inc()
            self._outcomes.attempts.forget_job(call.line)

    def _finalize(self, call: _LineJob, outcome: Outcome) -> Outcome:
        return self._router.finalize_response(call.upstream, self._slice.endpoint, call.request.body, outcome)

    def _token(self, call: _LineJob, submitted_at: float) -> CallbackToken:
        last_use = self._deadline.at + self._deadline.grace
        expires_at = math.ceil(min(submitted_at + call.config.max_poll_time, last_use))
        return CallbackToken(call.request.request_id, call.line.attempt.jobs, expires_at)

    def _labels(self, upstream: Upstream) -> tuple[str, str]:
        return self._model, kind_label(upstream)

    @contextlib.contextmanager
    def _registered(self, call: _LineJob) -> Generator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._followed[task] = call
        running = self._metrics.jobs_running.labels(*self._labels(call.upstream))
        running.inc()
        try:
            yield
        finally:
            running.dec()
            del self._followed[task]

    @contextlib.contextmanager
    def _subscribed(self, upstream: Upstream, token: CallbackToken) -> Generator[CallbackFuture | None]:
        """Context manager that yields a future for the job's callback.

        It yields None if the backend does not call back.
        """
        if not upstream.calls_back:
            yield None
            return
        callback = self._callbacks.subscribe(token.id)
        try:
            yield callback
        finally:
            self._callbacks.unsubscribe(token.id, callback)


def _config_of(upstream: Upstream) -> JobConfig:
    assert upstream.jobs is not None
    return upstream.jobs


async def _is_called(callback: CallbackFuture | None, seconds: float) -> bool:
    """Wait about `seconds` for a job's callback. Return True if it has arrived.

    The wait is shortened at random by up to a tenth, so that jobs are not all polled at the same time.

    Args:
        callback: future for the callback; None if the backend does not call back. The result is then False.
    """
    seconds *= 1 - 0.1 * random.random()
    if callback is None:
        await asyncio.sleep(seconds)
        return False
    await asyncio.wait([callback], timeout=seconds)
    return callback.done()
