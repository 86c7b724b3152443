"""Models whose backend runs jobs: each line is submitted once as a job.

After the end of a turn (the time for which a worker may run a slice), a crash or an outage, the job is found
again.
"""

import asyncio
import json
import time

import httpx
import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.results.segment_format import RecordKind
from tests.activities.execution.backend_jobs.job_server import JobServer, config_of, done
from tests.activities.execution.fixture import MODEL, eventually, ok, request, status

pytestmark = pytest.mark.usefixtures("skipped_waits")


async def test_a_job_is_submitted_once_and_polled_until_it_is_done() -> None:
    server = JobServer(config_of())
    await server.plan()
    running = server.execution.start(request())
    await eventually(lambda: len(server.polls) == 3 and min(server.polls.values()) > 2)
    assert server.execution.context.permits.used == 3
    server.every_status = done()
    assert await running == SliceResult(finished=True, completed=3)
    assert len(server.submits) == 3
    [body, *_] = [
        json.loads(record.payload)["response"]["body"]
        for record in (await server.execution.settled()).values()
    ]
    assert body == {"echo": "hi", "usage": {"prompt_tokens": 3}}
    assert server.execution.context.permits.used == 0


async def test_a_result_that_comes_with_the_submit_settles_the_line_at_once() -> None:
    server = JobServer(config_of())
    server.taken = done()
    await server.plan()
    assert await server.execution.run(request()) == SliceResult(finished=True, completed=3)
    assert server.polls == {}
    assert await server.kinds() == {RecordKind.SETTLED: 3}


async def test_after_a_worker_died_its_jobs_are_found_again_and_nothing_is_submitted_twice() -> None:
    server = JobServer(config_of())
    await server.plan()
    dead = server.execution.start(request())
    await eventually(lambda: len(server.polls) == 3)
    await server.die(dead)
    assert sorted(await server.jobs()) == ["job-1", "job-2", "job-3"]
    looked = server.polls.total()
    alive = server.execution.start(request())
    await eventually(lambda: server.polls.total() >= looked + 3)
    server.every_status = done()
    assert await alive == SliceResult(finished=True, completed=3)
    assert len(server.submits) == 3
    assert server.polls.keys() == {"job-1", "job-2", "job-3"}


async def test_a_job_that_continues_in_another_turn_counts_as_one_request_since_its_submit() -> None:
    server = JobServer(config_of())
    await server.plan(1)
    dead = server.execution.start(request())
    await eventually(lambda: len(server.polls) == 1)
    submitted = time.time()
    await eventually(lambda: server.polls.total() >= 5)
    await server.die(dead)
    taken_over = time.time()
    server.every_status = done()
    assert await server.execution.run(request()) == SliceResult(finished=True, completed=1)
    lane = {"model": MODEL, "backend": "http://backend"}
    assert server.execution.counted("batchwright_requests_total", **lane, status="200") == 1
    assert server.execution.counted("batchwright_request_duration_seconds_count", **lane) == 1
    [traffic] = server.execution.context.traffic.snapshot({})
    assert taken_over - submitted <= traffic.seconds + 0.001
    timed = "batchwright_model_request_execution_duration_seconds"
    assert server.execution.counted(f"{timed}_count", model=MODEL) == 1
    assert taken_over - submitted <= server.execution.counted(f"{timed}_sum", model=MODEL) + 0.001


async def test_a_failed_poll_does_not_end_the_request_of_a_job() -> None:
    server = JobServer(config_of(), max_attempts=1, circuit_failures=3)
    await server.plan(1)
    server.every_status = status(503, **{"retry-after": "0"})
    assert (await server.execution.failure(request())).type == Failure.DEFERRED
    assert server.execution.context.traffic.snapshot({}) == []
    timed = "batchwright_model_request_execution_duration_seconds_count"
    assert server.execution.counted(timed, model=MODEL) == 0
    server.every_status = done()
    server.execution.next_attempt()
    server.execution.hurry()
    assert await server.execution.run(request()) == SliceResult(finished=True, completed=1)
    assert [lane.requests for lane in server.execution.context.traffic.snapshot({})] == [1]
    assert server.execution.counted(timed, model=MODEL) == 1


async def test_a_submit_whose_record_was_lost_carries_the_same_key_again() -> None:
    server = JobServer(config_of())
    await server.plan(1)
    server.loses_storage = True
    dead = server.execution.start(request())
    await eventually(lambda: len(server.submits) == 1)
    await server.die(dead)
    server.loses_storage, server.execution.storage.failing = False, None
    server.every_status = done()
    assert await server.execution.run(request()) == SliceResult(finished=True, completed=1)
    assert len(server.keys) == 2
    assert len(set(server.keys)) == 1


async def test_a_failed_job_uses_an_attempt_and_its_successor_has_another_key() -> None:
    server = JobServer(config_of())
    await server.plan(1)
    server.statuses[1] = httpx.Response(200, json={"status": "failed", "error": {"message": "out of memory"}})
    server.statuses[2] = done()
    assert await server.execution.run(request()) == SliceResult(finished=True, completed=1)
    [first, second] = server.keys
    assert second == f"{first}-1"


async def test_jobs_that_always_fail_end_the_line_with_the_last_error() -> None:
    server = JobServer(config_of(), max_attempts=2)
    await server.plan(1)
    server.every_status = httpx.Response(200, json={"status": "failed", "error": "no such voice"})
    assert await server.execution.run(request()) == SliceResult(finished=True, failed=1)
    assert len(server.submits) == 2
    assert await server.errors() == [
        {"code": LineCode.JOB_FAILED, "message": "The job job-2 failed: no such voice"}
    ]


async def test_a_failure_that_is_not_retryable_ends_the_line_at_once() -> None:
    server = JobServer(config_of(), max_attempts=5)
    await server.plan(1)
    server.every_status = httpx.Response(
        200, json={"status": "error", "error": "too long", "retryable": False}
    )
    assert await server.execution.run(request()) == SliceResult(finished=True, failed=1)
    assert len(server.submits) == 1


async def test_a_job_unknown_to_its_backend_is_submitted_again() -> None:
    server = JobServer(config_of())
    await server.plan(1)
    server.statuses[1] = status(404)
    server.statuses[2] = done()
    assert await server.execution.run(request()) == SliceResult(finished=True, completed=1)
    assert len(server.submits) == 2
    assert server.polls["job-1"] == 3


async def test_a_job_that_does_not_end_is_cancelled_at_its_backend() -> None:
    server = JobServer(config_of(max_poll_time=0.05), max_attempts=1)
    await server.plan(1)
    result = await server.execution.run(request())
    assert result == SliceResult(finished=True, failed=1)
    assert server.cancelled[0] == "job-1"
    [error] = await server.errors()
    assert error["code"] == LineCode.REQUEST_TIMEOUT
    assert error["message"].endswith("did not end within 0.05 s.")


async def test_an_unavailable_backend_costs_its_jobs_no_attempt_and_is_polled_later() -> None:
    server = JobServer(config_of(), max_attempts=1, circuit_failures=3)
    await server.plan(1)
    server.every_status = status(503, **{"retry-after": "0"})
    assert (await server.execution.failure(request())).type == Failure.DEFERRED
    server.every_status = done()
    server.execution.next_attempt()
    server.execution.hurry()
    assert await server.execution.run(request()) == SliceResult(finished=True, completed=1)
    assert len(server.submits) == 1


async def test_a_submit_that_is_refused_follows_the_usual_rules() -> None:
    server = JobServer(config_of(), circuit_failures=1, model_in_flight=1)
    await server.plan()
    server.taken = status(503, **{"retry-after": "30"})
    assert (await server.execution.failure(request())).type == Failure.DEFERRED
    assert len(server.submits) == 1
    assert await server.jobs() == []


async def test_a_submit_response_without_a_job_id_is_no_answer() -> None:
    server = JobServer(config_of(), max_attempts=1)
    await server.plan(1)
    server.taken = httpx.Response(200, json={"status": "queued"})
    assert await server.execution.run(request()) == SliceResult(finished=True, failed=1)
    [error] = await server.errors()
    assert error["code"] == LineCode.INVALID_RESPONSE
    assert "no id at job_id or id" in error["message"]


async def test_running_jobs_of_a_cancelled_slice_are_cancelled_at_their_backend() -> None:
    server = JobServer(config_of())
    await server.plan()
    running = server.execution.start(request(cancel_grace_seconds=0.05))
    await eventually(lambda: len(server.polls) == 3)
    details = ActivityCancellationDetails(cancel_requested=True)
    server.execution.environment.cancel(cancellation_details=details)
    assert await running == SliceResult()
    assert sorted(server.cancelled) == ["job-1", "job-2", "job-3"]


async def test_a_lost_slice_leaves_its_jobs_to_the_next_attempt() -> None:
    server = JobServer(config_of())
    await server.plan()
    running = server.execution.start(request())
    await eventually(lambda: len(server.polls) == 3)
    server.execution.environment.cancel(cancellation_details=ActivityCancellationDetails(timed_out=True))
    with pytest.raises(ApplicationError, match="another attempt owns the slice"):
        await running
    assert server.cancelled == []


@pytest.mark.parametrize("answer", [False, DatabaseUnavailable("away")], ids=["paused", "nobody knows"])
async def test_a_slice_stopped_without_a_cancel_keeps_its_jobs_for_its_next_turn(
    answer: bool | Exception,
) -> None:
    async def is_cancelled(tenant: str, batch_id: str) -> bool:
        if isinstance(answer, Exception):
            raise answer
        return answer

    server = JobServer(config_of())
    server.execution.context.is_cancelled = is_cancelled
    await server.plan()
    running = server.execution.start(request(cancel_grace_seconds=0.05))
    await eventually(lambda: len(server.polls) == 3)
    details = ActivityCancellationDetails(cancel_requested=True)
    server.execution.environment.cancel(cancellation_details=details)
    assert await running == SliceResult()
    assert (server.cancelled, await server.jobs()) == ([], ["job-1", "job-2", "job-3"])
    server.execution.next_attempt()
    server.every_status = done()
    assert await server.execution.run(request(generation=1)) == SliceResult(finished=True, completed=3)
    assert len(server.submits) == 3


def counted(server: JobServer) -> dict[str, float]:
    """Return the values of the metrics about jobs, by the metric's name and its label `result`.

    Metrics about polls and the buckets of histograms are left out.
    """
    found: dict[str, float] = {}
    for family in server.execution.metrics.registry.collect():
        for sample in family.samples:
            name = sample.name.removeprefix("batchwright_backend_job")
            if name != sample.name and "_polled_" not in name and "le" not in sample.labels:
                found[f"{name} {sample.labels.get('result', '')}"] = sample.value
    return found


async def test_jobs_are_counted_from_their_submit_to_their_end() -> None:
    server = JobServer(config_of())
    await server.plan()
    running = server.execution.start(request())
    await eventually(lambda: len(server.polls) == 3)
    assert counted(server) == {"s_submitted_total ": 3, "s_running ": 3}
    failed = httpx.Response(200, json={"status": "failed", "error": "no"})
    server.statuses = {1: done(), 2: done(), 3: failed, 4: done()}
    assert (await running).finished
    found = counted(server)
    assert found["s_running "] == 0
    assert found["s_ended_total completed"] + found["s_ended_total failed"] == found["s_submitted_total "]
    assert found["s_ended_total failed"] >= 1
    assert found["_duration_seconds_count "] == found["s_submitted_total "]


async def test_a_worker_that_drains_leaves_its_jobs_to_the_next_one() -> None:
    server = JobServer(config_of(), drain_seconds=3600)
    await server.plan()
    leaving = asyncio.create_task(server.execution.failure(request()))
    await eventually(lambda: len(server.polls) == 3)
    server.execution.environment.worker_shutdown()
    assert (await leaving).type == Failure.TURN_OVER
    assert server.cancelled == []
    server.execution.next_attempt()
    server.every_status = done()
    assert await server.execution.run(request()) == SliceResult(finished=True, completed=3)
    assert len(server.submits) == 3


def stop_using_jobs(server: JobServer) -> None:
    """Change the model `m`: from now on, its backends get single requests."""
    router = server.execution.backends.router_for("m")
    assert router is not None
    for upstream in router.upstreams:
        upstream.jobs = None


async def test_a_model_that_no_longer_uses_jobs_forgets_the_stored_ones() -> None:
    server = JobServer(config_of())
    await server.plan(1)
    dead = server.execution.start(request())
    await eventually(lambda: server.polls.total() > 0)
    await server.die(dead)
    stop_using_jobs(server)
    server.taken = ok("sync")
    assert await server.execution.run(request()) == SliceResult(finished=True, completed=1)


async def followed_while_the_model_becomes_sync() -> tuple[JobServer, asyncio.Task[SliceResult]]:
    server = JobServer(config_of())
    await server.plan(1)
    running = server.execution.start(request())
    await eventually(lambda: server.polls.total() > 0)
    stop_using_jobs(server)
    return server, running


@pytest.mark.parametrize("answer", [done(), status(404)], ids=["done", "lost"])
async def test_a_job_that_runs_when_its_model_stops_using_jobs_is_polled_to_its_end(
    answer: httpx.Response,
) -> None:
    server, running = await followed_while_the_model_becomes_sync()
    looked = server.polls.total()
    await eventually(lambda: running.done() or server.polls.total() > looked + 1)
    server.taken = ok("sync")
    server.every_status = answer
    assert await running == SliceResult(finished=True, completed=1)
    assert len(server.submits) == (1 if answer.is_success else 2)


async def test_a_job_whose_model_stopped_using_jobs_is_cancelled_with_its_batch() -> None:
    server, running = await followed_while_the_model_becomes_sync()
    server.execution.environment.cancel(
        cancellation_details=ActivityCancellationDetails(cancel_requested=True)
    )
    await running
    assert server.cancelled == ["job-1"]
