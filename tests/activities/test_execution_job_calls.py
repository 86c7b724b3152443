"""Slices of models whose backends call back when a job is done: once, late, too large, at which URL."""

import asyncio
import json

import pytest

from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.execution import SliceResult
from batchwright.rules.callbacks import PATH
from tests.activities.execution_house import (
    eventually,
    request,
)
from tests.activities.job_server import CallingServer, JobServer, config_of

pytestmark = pytest.mark.usefixtures("skipped_waits")


async def _looked(server: CallingServer, running: "asyncio.Task[SliceResult]") -> SliceResult:
    while not running.done():
        await server.look()
        await asyncio.sleep(0.01)
    return running.result()


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
