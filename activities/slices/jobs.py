"""Lines that backends answer by jobs: submitted once, then polled or waited for, through turns and crashes.

That a backend has taken a job is stored before the job is asked after; whoever reads the slice next goes on
with it.
"""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Generator

from activities.slices.callbacks import Call
from activities.slices.ends import End, Stop
from activities.slices.job_counts import JobCounts
from activities.slices.judge import Judge, Request
from activities.slices.sink import SegmentSink
from activities.slices.tools import Tools
from activities.slices.work import Job, Line
from batchwright.contracts.execution import SliceRequest
from batchwright.contracts.jobs import JobConfig
from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference import jobs
from batchwright.inference.engine import Header, Target
from batchwright.inference.outcomes import Outcome
from batchwright.inference.routes import Lane, Route, Sending
from batchwright.rules import retries
from batchwright.rules.callbacks import Callback
from batchwright.rules.jobs import State, Told, job_path
from batchwright.rules.renaming import with_last
from batchwright.rules.retries import NOT_NOW
from batchwright.storage.base import StorageUnavailable

logger = logging.getLogger(__name__)
_UNCLEAR_LOOKS = 3  # in a row: then the line waits for its backend as others do, and keeps its job
_CALL_OFF_SECONDS = 2.0


def passed_on(request: SliceRequest) -> list[Header]:
    """The headers of the slice's batch that go with each of its requests."""
    return [(name.encode(), value.encode()) for name, value in request.caller.headers.items()]


class Jobs:
    """Of one turn."""

    def __init__(
        self,
        tools: Tools,
        request: SliceRequest,
        *,
        route: Route,
        judge: Judge,
        sink: SegmentSink,
        stop: Stop,
    ) -> None:
        self._callbacks, self._most_bytes = tools.callbacks, tools.settings.max_response_bytes
        self._counts = JobCounts(tools.metrics, request.model)
        self._is_cancelled, self._batch = tools.is_cancelled, (request.tenant, request.batch_id)
        self._slice, self._route, self._extra = request, route, passed_on(request)
        self._judge, self._sink, self._stop = judge, sink, stop
        self._following: dict[asyncio.Task[None], tuple[Line, Request, Lane, JobConfig]] = {}
        self._told: list[str] = []  # calls whose jobs have ended

    async def run(self, line: Line, request: Request, sending: Sending) -> Outcome:
        """Submits a job for the line and follows it to its end."""
        lane, since = sending.lane, time.time()
        config = _config_of(lane)
        outcome = await self._submit(line, request, lane, config, since)
        if outcome.verdict is not retries.SUCCESS:
            return outcome
        told = jobs.taken(outcome, config, calls_back=lane.calls_back)
        if isinstance(told, Outcome):
            return told
        if told.state is not State.GOES_ON:
            ended = jobs.ended(told, backend_request_id=outcome.backend_request_id)
            return self._shown(lane, request, ended)
        self._counts.submitted(lane)
        self._judge.submitted(line, Job(id=told.job_id, lane=lane.key, since=since))
        with contextlib.suppress(StorageUnavailable):  # the record stays open; the turn's end raises it
            await self._sink.close(lambda: self._stop.now() is None)
        return await self._follow(line, request, sending, config)

    async def follow(self, line: Line, request: Request, sending: Sending) -> Outcome:
        """What came of the line's job. One that ended without an answer is the line's no more.

        The registry may say otherwise meanwhile: a job is followed as the model was asked when this began.
        """
        return await self._follow(line, request, sending, _config_of(sending.lane))

    async def _follow(self, line: Line, request: Request, sending: Sending, config: JobConfig) -> Outcome:
        lane, job = sending.lane, line.attempt.job
        assert job is not None
        callback = self._callback(line, request, job.since, config)
        with self._followed(line, request, lane, config), self._expected(lane, callback) as call:
            outcome = self._shown(lane, request, await self._watch(request, sending, config, job, call))
        if outcome.verdict.budget in NOT_NOW:
            return outcome
        self._counts.ended(lane, outcome, time.time() - job.since)
        if outcome.verdict is not retries.SUCCESS:
            self._judge.job_ended(line)
        if lane.calls_back:
            self._told.append(callback.id)
        return outcome

    def leave(self) -> None:
        """The worker goes: the next one finds the jobs."""
        for task in self._following:
            task.cancel()

    async def call_off(self) -> None:
        """The window has closed, or the batch was cancelled: nobody waits any more.

        The jobs of a batch that is paused, or goes on in another run, are left to the slice's next attempt.
        """
        if self._stop.end not in (End.CLOSED, End.STOPPED):
            return
        left = list(self._following.values())
        if not left:
            return
        self.leave()
        with contextlib.suppress(TimeoutError, DatabaseUnavailable):
            async with asyncio.timeout(_CALL_OFF_SECONDS):
                if self._stop.end is End.CLOSED or await self._is_cancelled(*self._batch):
                    await asyncio.gather(*(self._call_off(*one) for one in left))

    async def forget(self) -> None:
        """Once what ended is stored: what backends told of it is of no more use."""
        told, self._told = self._told, []
        await self._callbacks.forget(told)

    def _shown(self, lane: Lane, request: Request, outcome: Outcome) -> Outcome:
        return self._route.shown(lane, self._slice.endpoint, request.body, outcome)

    async def _submit(
        self, line: Line, request: Request, lane: Lane, config: JobConfig, since: float
    ) -> Outcome:
        body, count = request.body, line.attempt.jobs
        extra = self._extra
        if lane.calls_back:
            url = self._callbacks.url(self._callback(line, request, since, config))
            if not url:
                names = "BATCHWRIGHT_CALLBACK_URL or BATCHWRIGHT_CALLBACK_SECRET"
                message = f"The backend calls back, and {names} is not set for this worker."
                return Outcome(retries.NOT_SENT, message=message)
            header = config.callback_header.lower().encode()
            extra = [*(one for one in extra if one[0] != header), (header, url.encode())]
            if config.callback_field:
                body = with_last(body, config.callback_field, url)
        # A job that failed is not to be taken for its successor.
        key = f"{request.request_id}-{count}" if count else request.request_id
        path = config.submit_endpoint or self._slice.endpoint
        return await self._route.submit(lane, path, body, request.request_id, key, extra)

    async def _watch(
        self, request: Request, sending: Sending, config: JobConfig, job: Job, call: Call | None
    ) -> Outcome:
        """Until it ends, is given up, or cannot be asked after."""
        lane = sending.lane
        until, wait, unclear = job.since + config.max_poll_time, config.poll_interval, 0
        while not await _is_called(call, min(wait, max(until - time.time(), 0.0))):
            seen = await self._look(request, lane, config, job)
            if isinstance(seen, Told):
                if seen.state is not State.GOES_ON:
                    return jobs.ended(seen, job.id)
                unclear, wait = 0, config.poll_interval
            elif seen.verdict is retries.TOO_LARGE:
                return seen
            else:
                unclear, wait = unclear + 1, max(config.poll_interval, seen.retry_after or 0.0)
                if unclear >= _UNCLEAR_LOOKS:
                    return jobs.out_of_sight(seen, job.id)
                if seen.verdict.budget in NOT_NOW:
                    if not sending.begun.is_trial:  # a trial fails once, at its end
                        self._judge.lane_refused(seen, sending)
                    continue
            if time.time() >= until:
                await self._give_up(request, lane, config, job)
                return jobs.overdue(config, job.id)
        return self._read(call, config, job)

    async def _look(self, request: Request, lane: Lane, config: JobConfig, job: Job) -> Told | Outcome:
        if not config.poll_endpoint_template or not job.id:
            return jobs.GOES_ON
        target = Target.of(lane.backend.url + job_path(config.poll_endpoint_template, job.id))
        seen = jobs.looked(
            await lane.backend.client.look(b"GET", target, request.request_id, self._extra), config
        )
        if isinstance(seen, Told):
            lane.circuit.heard()
        self._counts.looked(lane, is_told=isinstance(seen, Told))
        return seen

    def _read(self, call: Call | None, config: JobConfig, job: Job) -> Outcome:
        """What the backend told by calling."""
        assert call is not None
        told = call.result()
        if told.body is None:
            return jobs.too_large(told.size, self._most_bytes)
        found = jobs.called(told.body, config)
        return found if isinstance(found, Outcome) else jobs.ended(found, job.id)

    async def _give_up(self, request: Request, lane: Lane, config: JobConfig, job: Job) -> bool:
        """Whether the backend was told that nobody waits for the job."""
        if not config.cancel_endpoint_template or not job.id:
            return False
        target = Target.of(lane.backend.url + job_path(config.cancel_endpoint_template, job.id))
        outcome = await lane.backend.client.look(
            config.cancel_method.encode(), target, request.request_id, self._extra
        )
        if not 200 <= outcome.status < 300:
            said = {"backend": lane.backend.url, "job": job.id, "error": outcome.message}
            logger.info("a job could not be given up at its backend", extra=said)
        return True

    async def _call_off(self, line: Line, request: Request, lane: Lane, config: JobConfig) -> None:
        job = line.attempt.job
        if job is not None and await self._give_up(request, lane, config, job):
            self._counts.given_up(lane)
            self._judge.job_ended(line)

    def _callback(self, line: Line, request: Request, since: float, config: JobConfig) -> Callback:
        over = self._slice.closes_at.timestamp() + self._slice.expiry_grace_seconds
        expires_at = math.ceil(min(since + config.max_poll_time, over))
        return Callback(request.request_id, line.attempt.jobs, expires_at)

    @contextlib.contextmanager
    def _followed(self, line: Line, request: Request, lane: Lane, config: JobConfig) -> Generator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._following[task] = (line, request, lane, config)
        self._counts.running(lane, 1)
        try:
            yield
        finally:
            self._counts.running(lane, -1)
            del self._following[task]

    @contextlib.contextmanager
    def _expected(self, lane: Lane, callback: Callback) -> Generator[Call | None]:
        """None of a job that does not call back."""
        if not lane.calls_back:
            yield None
            return
        call = self._callbacks.expect(callback.id)
        try:
            yield call
        finally:
            self._callbacks.leave(callback.id, call)


def _config_of(lane: Lane) -> JobConfig:
    assert lane.jobs is not None
    return lane.jobs


async def _is_called(call: Call | None, seconds: float) -> bool:
    """Waits for a call, or so long; a little less: jobs of one moment are not all asked after at once."""
    seconds *= 1 - 0.1 * random.random()
    if call is None:
        await asyncio.sleep(seconds)
        return False
    await asyncio.wait([call], timeout=seconds)
    return call.done()
