"""Slices of models that are asked by jobs: submitted once, followed through turns, crashes and outages."""

import asyncio
import json
import time
from collections import Counter
from datetime import UTC, datetime

import httpx
import pytest
from temporalio.activity import ActivityCancellationDetails

from activities.slices.callbacks import CallbackWatch
from activities.slices.work import Attempt
from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.execution import SliceResult
from batchwright.contracts.registry import GatewayConfig, ModelConfig
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.callbacks import PATH, read_token
from batchwright.rules.segments import Kind
from batchwright.storage.base import StorageUnavailable
from tests.activities.execution_house import (
    MODEL,
    House,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)
from tests.fakes.database import MemoryDatabase

pytestmark = pytest.mark.usefixtures("skipped_waits")

SECRET = "s" * 32
TEMPLATES = {"poll_endpoint_template": "/status/{id}", "cancel_endpoint_template": "/cancel/{id}"}


def config_of(kind: str = "poll", **jobs: object) -> ModelConfig:
    told = {"poll_interval": 0.01, **(TEMPLATES if kind == "poll" else {}), **jobs}
    return ModelConfig.model_validate(
        {"backends": [GatewayConfig(url="http://backend")], "kind": kind, "jobs": told}
    )


class JobServer:
    """A house before a backend of jobs. `says` is what it tells of a job, by its number; else it goes on."""

    def __init__(self, config: ModelConfig, **settings: object) -> None:
        self.database = MemoryDatabase()
        self.house = House(ok, config=config, **settings)
        self.house.answer = self._answer
        self.house.tools.callbacks = CallbackWatch(self.database.callbacks, self.house.settings)
        self.submits: list[httpx.Request] = []
        self.looks: Counter[str] = Counter()
        self.cancelled: list[str] = []
        self.says: dict[int, httpx.Response] = {}
        self.says_all: httpx.Response | None = None
        self.loses_storage = False  # as soon as a job is submitted
        self.taken = httpx.Response(202, json={"status": "processing"})

    @property
    def keys(self) -> list[str]:
        return [submit.headers["idempotency-key"] for submit in self.submits]

    async def die(self, running: "asyncio.Task[SliceResult]") -> None:
        """The worker is gone: its attempt writes nothing more, and the next one begins."""
        details = ActivityCancellationDetails(timed_out=True)
        self.house.environment.cancel(cancellation_details=details)
        [error] = await asyncio.gather(running, return_exceptions=True)
        assert getattr(error, "type", "") == Failure.OWNERSHIP_LOST
        self.house.next_worker()

    async def plan(self, lines: int = 3) -> list[int]:
        return await plan_slice(self.house.storage, [line_of(n) for n in range(lines)])

    async def kinds(self) -> Counter[Kind]:
        return Counter(record.kind for record in await self.house.records())

    async def jobs(self) -> list[str]:
        """The ids that lie in storage, as they were written."""
        records = [record for record in await self.house.records() if record.kind is Kind.SUBMITTED]
        found = [Attempt.model_validate_json(record.payload).job for record in records]
        return [job.id for job in found if job is not None]

    async def errors(self) -> list[dict[str, str]]:
        records = await self.house.settled()
        return [json.loads(record.payload)["error"] for record in records.values()]

    async def _answer(self, asked: httpx.Request) -> httpx.Response:
        path = asked.url.path
        if asked.method == "GET" and path.startswith("/status/"):
            self.looks[path.removeprefix("/status/")] += 1
            number = int(path.rpartition("-")[2])
            return _again(
                self.says.get(number) or self.says_all or httpx.Response(200, json={"status": "running"})
            )
        if path.startswith("/cancel/"):
            self.cancelled.append(path.removeprefix("/cancel/"))
            return httpx.Response(200, json={})
        self.submits.append(asked)
        if self.loses_storage:
            self.house.storage.failing = StorageUnavailable("away")
        if self.taken.status_code != 202:
            return _again(self.taken)
        return httpx.Response(202, json={"status": "processing", "job_id": f"job-{len(self.submits)}"})


def _again(answer: httpx.Response) -> httpx.Response:
    return httpx.Response(answer.status_code, content=answer.content, headers=dict(answer.headers))


def done(text: str = "hi") -> httpx.Response:
    return httpx.Response(
        200, json={"status": "Completed", "result": {"echo": text, "usage": {"prompt_tokens": 3}}}
    )


async def test_a_job_is_submitted_once_and_polled_until_it_is_done() -> None:
    server = JobServer(config_of())
    await server.plan()
    running = server.house.start(request())
    await eventually(lambda: len(server.looks) == 3 and min(server.looks.values()) > 2)
    assert server.house.tools.permits.used == 3
    server.says_all = done()
    assert await running == SliceResult(finished=True, completed=3)
    assert len(server.submits) == 3
    [body, *_] = [
        json.loads(record.payload)["response"]["body"] for record in (await server.house.settled()).values()
    ]
    assert body == {"echo": "hi", "usage": {"prompt_tokens": 3}}
    assert server.house.tools.permits.used == 0


async def test_a_result_that_comes_with_the_submit_settles_the_line_at_once() -> None:
    server = JobServer(config_of())
    server.taken = done()
    await server.plan()
    assert await server.house.run(request()) == SliceResult(finished=True, completed=3)
    assert server.looks == {}
    assert await server.kinds() == {Kind.SETTLED: 3}


async def test_after_a_worker_died_its_jobs_are_found_again_and_nothing_is_submitted_twice() -> None:
    server = JobServer(config_of())
    await server.plan()
    dead = server.house.start(request())
    await eventually(lambda: len(server.looks) == 3)
    await server.die(dead)
    assert sorted(await server.jobs()) == ["job-1", "job-2", "job-3"]
    looked = server.looks.total()
    alive = server.house.start(request())
    await eventually(lambda: server.looks.total() >= looked + 3)
    server.says_all = done()
    assert await alive == SliceResult(finished=True, completed=3)
    assert len(server.submits) == 3
    assert server.looks.keys() == {"job-1", "job-2", "job-3"}


async def test_a_job_that_another_turn_went_on_with_counts_as_one_request_since_its_submit() -> None:
    server = JobServer(config_of())
    await server.plan(1)
    before = time.time()
    dead = server.house.start(request())
    await eventually(lambda: len(server.looks) == 1)
    await server.die(dead)
    taken_over = time.time()
    server.says_all = done()
    assert await server.house.run(request()) == SliceResult(finished=True, completed=1)
    lane = {"model": MODEL, "backend": "http://backend"}
    assert server.house.counted("batchwright_requests_total", **lane, status="200") == 1
    assert server.house.counted("batchwright_request_duration_seconds_count", **lane) == 1
    [told] = server.house.tools.traffic.told({})
    assert taken_over - before <= told.seconds + 0.001


async def test_a_backend_that_cannot_be_asked_after_a_job_has_not_ended_its_request() -> None:
    server = JobServer(config_of(), max_attempts=1, circuit_failures=3)
    await server.plan(1)
    server.says_all = status(503, **{"retry-after": "0"})
    assert (await server.house.failure(request())).type == Failure.DEFERRED
    assert server.house.tools.traffic.told({}) == []
    server.says_all = done()
    server.house.next_attempt()
    server.house.hurry()
    assert await server.house.run(request()) == SliceResult(finished=True, completed=1)
    assert [lane.requests for lane in server.house.tools.traffic.told({})] == [1]


async def test_a_submit_whose_record_was_lost_carries_the_same_key_again() -> None:
    server = JobServer(config_of())
    await server.plan(1)
    server.loses_storage = True
    dead = server.house.start(request())
    await eventually(lambda: len(server.submits) == 1)
    await server.die(dead)
    server.loses_storage, server.house.storage.failing = False, None
    server.says_all = done()
    assert await server.house.run(request()) == SliceResult(finished=True, completed=1)
    assert len(server.keys) == 2
    assert len(set(server.keys)) == 1


async def test_a_failed_job_uses_an_attempt_and_its_successor_has_another_key() -> None:
    server = JobServer(config_of())
    await server.plan(1)
    server.says[1] = httpx.Response(200, json={"status": "failed", "error": {"message": "out of memory"}})
    server.says[2] = done()
    assert await server.house.run(request()) == SliceResult(finished=True, completed=1)
    [first, second] = server.keys
    assert second == f"{first}-1"


async def test_jobs_that_always_fail_end_the_line_with_the_last_error() -> None:
    server = JobServer(config_of(), max_attempts=2)
    await server.plan(1)
    server.says_all = httpx.Response(200, json={"status": "failed", "error": "no such voice"})
    assert await server.house.run(request()) == SliceResult(finished=True, failed=1)
    assert len(server.submits) == 2
    assert await server.errors() == [
        {"code": LineCode.JOB_FAILED, "message": "The job job-2 failed: no such voice"}
    ]


async def test_a_failure_that_is_not_retryable_ends_the_line_at_once() -> None:
    server = JobServer(config_of(), max_attempts=5)
    await server.plan(1)
    server.says_all = httpx.Response(200, json={"status": "error", "error": "too long", "retryable": False})
    assert await server.house.run(request()) == SliceResult(finished=True, failed=1)
    assert len(server.submits) == 1


async def test_a_job_that_its_backend_has_forgotten_is_submitted_again() -> None:
    server = JobServer(config_of())
    await server.plan(1)
    server.says[1] = status(404)
    server.says[2] = done()
    assert await server.house.run(request()) == SliceResult(finished=True, completed=1)
    assert len(server.submits) == 2
    assert server.looks["job-1"] == 3


async def test_a_job_that_does_not_end_is_given_up_at_its_backend() -> None:
    server = JobServer(config_of(max_poll_time=0.05), max_attempts=1)
    await server.plan(1)
    result = await server.house.run(request())
    assert result == SliceResult(finished=True, failed=1)
    assert server.cancelled[0] == "job-1"
    [error] = await server.errors()
    assert error["code"] == LineCode.REQUEST_TIMEOUT
    assert error["message"].endswith("did not end within 0.05 s.")


async def test_a_backend_that_is_away_costs_its_jobs_nothing_and_is_asked_after_them_later() -> None:
    server = JobServer(config_of(), max_attempts=1, circuit_failures=3)
    await server.plan(1)
    server.says_all = status(503, **{"retry-after": "0"})
    assert (await server.house.failure(request())).type == Failure.DEFERRED
    server.says_all = done()
    server.house.next_attempt()
    server.house.hurry()
    assert await server.house.run(request()) == SliceResult(finished=True, completed=1)
    assert len(server.submits) == 1


async def test_a_submit_that_is_refused_follows_the_usual_rules() -> None:
    server = JobServer(config_of(), circuit_failures=1, model_in_flight=1)
    await server.plan()
    server.taken = status(503, **{"retry-after": "30"})
    assert (await server.house.failure(request())).type == Failure.DEFERRED
    assert len(server.submits) == 1
    assert await server.jobs() == []


async def test_a_backend_that_names_no_job_has_not_answered() -> None:
    server = JobServer(config_of(), max_attempts=1)
    await server.plan(1)
    server.taken = httpx.Response(200, json={"status": "queued"})
    assert await server.house.run(request()) == SliceResult(finished=True, failed=1)
    [error] = await server.errors()
    assert error["code"] == LineCode.INVALID_RESPONSE
    assert "named no id at job_id or id" in error["message"]


async def test_when_nobody_waits_any_more_running_jobs_are_given_up_at_their_backend() -> None:
    server = JobServer(config_of())
    await server.plan()
    running = server.house.start(request(cancel_grace_seconds=0.05))
    await eventually(lambda: len(server.looks) == 3)
    details = ActivityCancellationDetails(cancel_requested=True)
    server.house.environment.cancel(cancellation_details=details)
    assert await running == SliceResult()
    assert sorted(server.cancelled) == ["job-1", "job-2", "job-3"]


@pytest.mark.parametrize("answer", [False, DatabaseUnavailable("away")], ids=["paused", "nobody knows"])
async def test_a_slice_that_is_stopped_without_a_cancel_keeps_its_jobs_for_when_it_goes_on(
    answer: bool | Exception,
) -> None:
    async def is_cancelled(tenant: str, batch_id: str) -> bool:
        if isinstance(answer, Exception):
            raise answer
        return answer

    server = JobServer(config_of())
    server.house.tools.is_cancelled = is_cancelled
    await server.plan()
    running = server.house.start(request(cancel_grace_seconds=0.05))
    await eventually(lambda: len(server.looks) == 3)
    details = ActivityCancellationDetails(cancel_requested=True)
    server.house.environment.cancel(cancellation_details=details)
    assert await running == SliceResult()
    assert (server.cancelled, await server.jobs()) == ([], ["job-1", "job-2", "job-3"])
    server.house.next_attempt()
    server.says_all = done()
    assert await server.house.run(request(generation=1)) == SliceResult(finished=True, completed=3)
    assert len(server.submits) == 3


def counted(server: JobServer) -> dict[str, float]:
    """What is counted of jobs, but looks and buckets: by name and result."""
    found: dict[str, float] = {}
    for family in server.house.metrics.registry.collect():
        for sample in family.samples:
            name = sample.name.removeprefix("batchwright_backend_job")
            if name != sample.name and "_polled_" not in name and "le" not in sample.labels:
                found[f"{name} {sample.labels.get('result', '')}"] = sample.value
    return found


async def test_jobs_are_counted_from_their_submit_to_their_end() -> None:
    server = JobServer(config_of())
    await server.plan()
    running = server.house.start(request())
    await eventually(lambda: len(server.looks) == 3)
    assert counted(server) == {"s_submitted_total ": 3, "s_running ": 3}
    failed = httpx.Response(200, json={"status": "failed", "error": "no"})
    server.says = {1: done(), 2: done(), 3: failed, 4: done()}
    assert (await running).finished
    found = counted(server)
    assert found["s_running "] == 0
    assert found["s_ended_total completed"] + found["s_ended_total failed"] == found["s_submitted_total "]
    assert found["s_ended_total failed"] >= 1
    assert found["_duration_seconds_count "] == found["s_submitted_total "]


async def test_a_worker_that_drains_leaves_its_jobs_to_the_next_one() -> None:
    server = JobServer(config_of(), drain_seconds=3600)
    await server.plan()
    leaving = asyncio.create_task(server.house.failure(request()))
    await eventually(lambda: len(server.looks) == 3)
    server.house.environment.worker_shutdown()
    assert (await leaving).type == Failure.TURN_OVER
    assert server.cancelled == []
    server.house.next_attempt()
    server.says_all = done()
    assert await server.house.run(request()) == SliceResult(finished=True, completed=3)
    assert len(server.submits) == 3


async def test_a_model_that_is_asked_otherwise_meanwhile_forgets_its_jobs() -> None:
    server = JobServer(config_of())
    await server.plan(1)
    dead = server.house.start(request())
    await eventually(lambda: server.looks.total() > 0)
    await server.die(dead)
    for lane in server.house.backends.route_of("m").lanes:  # pyright: ignore[reportOptionalMemberAccess]
        lane.jobs = None
    server.taken = ok("sync")
    assert await server.house.run(request()) == SliceResult(finished=True, completed=1)


class CallingServer(JobServer):
    """Its jobs call back."""

    def __init__(self, *, url: str = "http://api", **jobs: object) -> None:
        config = config_of("callback", **jobs)
        super().__init__(config, callback_url=url, callback_secret=SECRET)
        self.watch = self.house.tools.callbacks
        assert isinstance(self.watch, CallbackWatch)

    @property
    def tokens(self) -> list[str]:
        return [submit.headers["x-callback-url"].removeprefix(f"http://api{PATH}") for submit in self.submits]

    async def call(self, place: int, body: bytes | None, size: int = 0) -> None:
        found = read_token(self.tokens[place], SECRET)
        assert found is not None
        await self.database.callbacks.accept(
            found.id, body, size or len(body or b""), datetime.fromtimestamp(found.expires_at, UTC)
        )
        await self.look()

    async def look(self) -> None:
        assert isinstance(self.watch, CallbackWatch)
        await self.watch.look()


async def test_a_backend_calls_back_and_the_line_has_its_answer() -> None:
    server = CallingServer()
    await server.plan(2)
    running = server.house.start(request())
    await eventually(lambda: len(server.submits) == 2)
    await server.call(0, b'{"status":"done","result":{"big":18446744073709551616}}')
    await server.call(1, b'{"no":"status"}')
    assert await _looked(server, running) == SliceResult(finished=True, completed=2)
    payloads = [record.payload for record in (await server.house.settled()).values()]
    assert b'"body":{"big":18446744073709551616}' in payloads[0]
    assert b'"body":{"no":"status"}' in payloads[1]
    calls = server.database.rows.callbacks
    assert [told for told, _ in calls.values()] == [None, None]


async def _looked(server: CallingServer, running: "asyncio.Task[SliceResult]") -> SliceResult:
    while not running.done():
        await server.look()
        await asyncio.sleep(0.01)
    return running.result()


async def test_what_was_told_while_no_worker_waited_is_found_by_the_next_one() -> None:
    server = CallingServer()
    await server.plan(1)
    planned = set(server.house.storage.objects)
    dead = server.house.start(request())
    await eventually(lambda: len(server.submits) == 1)
    await eventually(lambda: bool(server.house.storage.objects.keys() - planned))
    await server.die(dead)
    await server.call(0, b'{"result":{"echo":"late"}}')
    running = server.house.start(request())
    assert await _looked(server, running) == SliceResult(finished=True, completed=1)
    assert len(server.submits) == 1


async def test_a_call_that_says_failed_is_followed_by_another_job() -> None:
    server = CallingServer()
    await server.plan(1)
    running = server.house.start(request())
    await eventually(lambda: len(server.submits) == 1)
    await server.call(0, b'{"status":"failed","error":"busy"}')
    while len(server.submits) < 2:
        await server.look()
        await asyncio.sleep(0.01)
    assert server.tokens[0].split(".")[1] == "0"
    assert server.tokens[1].split(".")[1] == "1"
    await server.call(1, b'{"status":"success","result":{"a":1}}')
    assert await _looked(server, running) == SliceResult(finished=True, completed=1)


async def test_a_call_too_large_to_be_kept_settles_the_line() -> None:
    server = CallingServer()
    await server.plan(1)
    running = server.house.start(request())
    await eventually(lambda: len(server.submits) == 1)
    await server.call(0, None, 99_000_000)
    assert await _looked(server, running) == SliceResult(finished=True, failed=1)
    [error] = await server.errors()
    assert error["code"] == LineCode.RESPONSE_TOO_LARGE


@pytest.mark.parametrize("field", ["", "webhook"])
async def test_the_url_to_call_stands_where_the_registry_says(field: str) -> None:
    server = CallingServer(callback_field=field, callback_header="X-Hook", submit_endpoint="/run")
    await server.plan(1)
    running = server.house.start(request())
    await eventually(lambda: len(server.submits) == 1)
    [submit] = server.submits
    await server.die(running)
    url = submit.headers["x-hook"]
    assert url.startswith(f"http://api{PATH}")
    assert submit.url.path == "/run"
    assert json.loads(submit.content).get("webhook") == (url if field else None)


async def test_without_an_address_to_call_nothing_is_submitted_and_the_batch_says_why() -> None:
    server = JobServer(config_of("callback"), circuit_failures=1)
    await server.plan(1)
    error = await server.house.failure(request())
    assert error.type == Failure.DEFERRED
    assert "BATCHWRIGHT_CALLBACK_URL" in error.message
    assert server.submits == []
