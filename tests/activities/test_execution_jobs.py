"""Slices of models that are asked by jobs: submitted once, followed through turns, crashes and outages."""

import asyncio
import json
import time

import httpx
import pytest
from temporalio.activity import ActivityCancellationDetails

from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.execution import SliceResult
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.segments import Kind
from tests.activities.execution_house import (
    MODEL,
    eventually,
    ok,
    request,
    status,
)
from tests.activities.job_server import JobServer, config_of, done

pytestmark = pytest.mark.usefixtures("skipped_waits")


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
    dead = server.house.start(request())
    await eventually(lambda: len(server.looks) == 1)
    submitted = time.time()
    await eventually(lambda: server.looks.total() >= 5)
    await server.die(dead)
    taken_over = time.time()
    server.says_all = done()
    assert await server.house.run(request()) == SliceResult(finished=True, completed=1)
    lane = {"model": MODEL, "backend": "http://backend"}
    assert server.house.counted("batchwright_requests_total", **lane, status="200") == 1
    assert server.house.counted("batchwright_request_duration_seconds_count", **lane) == 1
    [told] = server.house.tools.traffic.told({})
    assert taken_over - submitted <= told.seconds + 0.001
    timed = "batchwright_model_request_execution_duration_seconds"
    assert server.house.counted(f"{timed}_count", model=MODEL) == 1
    assert taken_over - submitted <= server.house.counted(f"{timed}_sum", model=MODEL) + 0.001


async def test_a_backend_that_cannot_be_asked_after_a_job_has_not_ended_its_request() -> None:
    server = JobServer(config_of(), max_attempts=1, circuit_failures=3)
    await server.plan(1)
    server.says_all = status(503, **{"retry-after": "0"})
    assert (await server.house.failure(request())).type == Failure.DEFERRED
    assert server.house.tools.traffic.told({}) == []
    timed = "batchwright_model_request_execution_duration_seconds_count"
    assert server.house.counted(timed, model=MODEL) == 0
    server.says_all = done()
    server.house.next_attempt()
    server.house.hurry()
    assert await server.house.run(request()) == SliceResult(finished=True, completed=1)
    assert [lane.requests for lane in server.house.tools.traffic.told({})] == [1]
    assert server.house.counted(timed, model=MODEL) == 1


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


async def followed_while_the_model_becomes_sync() -> tuple[JobServer, asyncio.Task[SliceResult]]:
    server = JobServer(config_of())
    await server.plan(1)
    running = server.house.start(request())
    await eventually(lambda: server.looks.total() > 0)
    for lane in server.house.backends.route_of("m").lanes:  # pyright: ignore[reportOptionalMemberAccess]
        lane.jobs = None
    return server, running


@pytest.mark.parametrize("says", [done(), status(404)], ids=["done", "lost"])
async def test_a_job_that_runs_when_its_model_is_asked_otherwise_is_followed_to_its_end(
    says: httpx.Response,
) -> None:
    server, running = await followed_while_the_model_becomes_sync()
    looked = server.looks.total()
    await eventually(lambda: running.done() or server.looks.total() > looked + 1)
    server.taken = ok("sync")
    server.says_all = says
    assert await running == SliceResult(finished=True, completed=1)
    assert len(server.submits) == (1 if says.is_success else 2)


async def test_a_job_whose_model_is_asked_otherwise_is_given_up_with_its_batch() -> None:
    server, running = await followed_while_the_model_becomes_sync()
    server.house.environment.cancel(cancellation_details=ActivityCancellationDetails(cancel_requested=True))
    await running
    assert server.cancelled == ["job-1"]
