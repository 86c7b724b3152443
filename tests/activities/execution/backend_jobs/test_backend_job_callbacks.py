"""Callbacks of backends when a job has ended: repeated, late and too large callbacks, and the URL that
backends call.
"""

import asyncio
import json

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from batchwright.activities.execution.slice_state.lease import HeartbeatReply
from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.rules.backends.callback_tokens import CALLBACK_PATH
from tests.activities.execution.backend_jobs.job_server import CallingServer, JobServer, config_of
from tests.activities.execution.fixture import eventually, request

pytestmark = pytest.mark.usefixtures("skipped_waits")


async def _result_of(server: CallingServer, running: "asyncio.Task[SliceResult]") -> SliceResult:
    """Read the stored callbacks regularly until the slice has ended, and return its result."""
    while not running.done():
        await server.poll_callbacks()
        await asyncio.sleep(0.01)
    return running.result()


async def test_a_callback_answers_the_line() -> None:
    server = CallingServer()
    await server.plan(2)
    running = server.execution.start(request())
    await eventually(lambda: len(server.submits) == 2)
    await server.call(0, b'{"status":"done","result":{"big":18446744073709551616}}')
    await server.call(1, b'{"no":"status"}')
    assert await _result_of(server, running) == SliceResult(finished=True, completed=2)
    payloads = [record.payload for record in (await server.execution.settled()).values()]
    assert b'"body":{"big":18446744073709551616}' in payloads[0]
    assert b'"body":{"no":"status"}' in payloads[1]
    calls = server.database.rows.callbacks
    assert [sent_field for sent_field, _ in calls.values()] == [None, None]


async def test_a_callback_that_came_while_no_worker_ran_is_found_by_the_next_worker() -> None:
    server = CallingServer()
    await server.plan(1)
    planned = set(server.execution.storage.objects)
    dead = server.execution.start(request())
    await eventually(lambda: len(server.submits) == 1)
    await eventually(lambda: bool(server.execution.storage.objects.keys() - planned))
    await server.die(dead)
    await server.call(0, b'{"result":{"echo":"late"}}')
    running = server.execution.start(request())
    assert await _result_of(server, running) == SliceResult(finished=True, completed=1)
    assert len(server.submits) == 1


async def test_a_worker_that_has_lost_its_slice_leaves_a_callback_for_the_worker_that_has_it() -> None:
    """The callback is read at the moment of the reply that the slice is lost. So its line is not settled."""
    server = CallingServer()
    await server.plan(1)
    execution = server.execution
    planned, is_lost = set(execution.storage.objects), False

    async def beat(details: SliceResult) -> HeartbeatReply:
        if not is_lost:
            return HeartbeatReply.OK
        await server.poll_callbacks()
        await asyncio.sleep(0)
        return HeartbeatReply.LEASE_LOST

    execution.context.heartbeat = lambda: beat
    running = asyncio.create_task(execution.failure(request()))
    await eventually(lambda: len(server.submits) == 1)
    await eventually(lambda: bool(execution.storage.objects.keys() - planned))
    await server.accept(0, b'{"result":{"echo":"late"}}')
    is_lost = True
    assert (await running).type == Failure.OWNERSHIP_LOST
    assert all(body is not None for body, _ in server.database.rows.callbacks.values())


async def test_a_callback_with_a_failure_is_followed_by_another_job() -> None:
    server = CallingServer()
    await server.plan(1)
    running = server.execution.start(request())
    await eventually(lambda: len(server.submits) == 1)
    await server.call(0, b'{"status":"failed","error":"busy"}')
    while len(server.submits) < 2:
        await server.poll_callbacks()
        await asyncio.sleep(0.01)
    assert server.tokens[0].split(".")[1] == "0"
    assert server.tokens[1].split(".")[1] == "1"
    await server.call(1, b'{"status":"success","result":{"a":1}}')
    assert await _result_of(server, running) == SliceResult(finished=True, completed=1)


async def test_a_callback_that_is_too_large_to_store_settles_the_line() -> None:
    server = CallingServer()
    await server.plan(1)
    running = server.execution.start(request())
    await eventually(lambda: len(server.submits) == 1)
    await server.call(0, None, 99_000_000)
    assert await _result_of(server, running) == SliceResult(finished=True, failed=1)
    [error] = await server.errors()
    assert error["code"] == LineCode.RESPONSE_TOO_LARGE


async def test_a_callback_in_time_counts_even_if_it_is_read_after_the_time_limit_of_its_job() -> None:
    """The waits pass on the virtual clock of the event loop and take no real time."""
    limit = 5.0
    server = CallingServer(max_poll_time=limit)
    await server.plan(1)
    running = server.execution.start(request())
    await eventually(lambda: len(server.submits) == 1)
    await asyncio.sleep(limit - 0.2)  # just before it
    await server.accept(0, b'{"result":{"echo":"in time"}}')
    await asyncio.sleep(1.2)  # past the limit
    assert await _result_of(server, running) == SliceResult(finished=True, completed=1)
    assert len(server.submits) == 1


async def test_a_job_is_not_given_up_while_its_stored_callback_is_unread() -> None:
    """The callback is stored, but no regular query of the worker reads it, as if too many others
    came first.
    """
    server = CallingServer(max_poll_time=5.0)
    await server.plan(1)
    running = server.execution.start(request())
    await eventually(lambda: len(server.submits) == 1)
    await server.accept(0, b'{"result":{"echo":"unread"}}')
    assert await running == SliceResult(finished=True, completed=1)
    assert len(server.submits) == 1


async def test_a_job_that_its_backend_has_forgotten_is_not_lost_while_its_stored_callback_is_unread() -> None:
    server = CallingServer(poll_endpoint_template="/status/{id}")
    await server.plan(1)
    running = server.execution.start(request())
    await eventually(lambda: len(server.submits) == 1)
    await server.accept(0, b'{"result":{"echo":"unread"}}')
    server.every_status = httpx.Response(404)
    assert await running == SliceResult(finished=True, completed=1)
    assert len(server.submits) == 1


@pytest.mark.parametrize("field", ["", "webhook"])
async def test_the_callback_url_is_sent_in_the_header_or_field_that_the_registry_names(field: str) -> None:
    server = CallingServer(callback_field=field, callback_header="X-Hook", submit_endpoint="/run")
    await server.plan(1)
    running = server.execution.start(request())
    await eventually(lambda: len(server.submits) == 1)
    [submit] = server.submits
    await server.die(running)
    url = submit.headers["x-hook"]
    assert url.startswith(f"http://api{CALLBACK_PATH}")
    assert submit.url.path == "/run"
    assert json.loads(submit.content).get("webhook") == (url if field else None)


async def test_without_a_callback_address_no_job_is_submitted_and_the_batch_shows_the_reason() -> None:
    server = JobServer(config_of("callback"), circuit_failures=1)
    await server.plan(1)
    error = await server.execution.failure(request())
    assert error.type == Failure.DEFERRED
    assert "BATCHWRIGHT_CALLBACK_URL" in error.message
    assert server.submits == []


async def test_jobs_without_a_callback_use_up_the_attempts_of_their_lines() -> None:
    """The backend has no URL to poll, and does not list its models. So only its responses to new jobs show
    that it is reachable.
    """
    server = CallingServer(max_poll_time=0.02)
    answer = server.execution.answer

    async def lists_nothing(http_request: httpx.Request) -> httpx.Response:
        return httpx.Response(503) if http_request.url.path == "/v1/models" else await answer(http_request)

    server.execution.answer = lists_nothing
    await server.plan(1)
    result = None
    for _ in range(60):
        try:
            result = await server.execution.run(request())
        except ApplicationError:  # put off, or the turn is over
            server.execution.next_attempt()
            server.execution.hurry()
        else:
            break
    assert result == SliceResult(finished=True, failed=1)
    [error] = await server.errors()
    assert error["code"] == LineCode.REQUEST_TIMEOUT
