"""Batches complete with each kind of backend, even if a worker is killed during a job.

Invalid callbacks are rejected.
"""

from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from tests.clients import http_client
from tests.constants import with_constants
from tests.e2e.batches import (
    chat_line,
    chat_lines,
    check_conservation,
    ended,
    expired,
    lines_of,
    settled,
    submit,
    until,
)
from tests.e2e.jobs import CallbackBackend, Kind, Patient, call, config_of, register
from tests.e2e.stack import MODELS, Stack, dev
from tests.unit.simulator.simulators import serving

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

UPSTREAM: dict[Kind, str] = dict(zip(("sync", "poll", "callback"), MODELS, strict=True))
LINES, HELD = 30, 3  # HELD of the lines get no response until a worker has been killed
JOBS = 4  # at once, also at the start of an adaptive limit
SETTINGS = {
    **with_constants(refresh_seconds=0.5),
    "BATCHWRIGHT_CANCEL_GRACE_SECONDS": "60",  # a call comes within it, however busy the machine is
    "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "30",  # a worker on a busy machine must not count as lost
}


class _Totals(BaseModel):
    in_flight: int = 0


class _Jobs(BaseModel):
    callbacks_sent: int


class _Ledger(BaseModel):
    models: dict[str, _Totals]
    jobs: _Jobs


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with dev(data=None, **SETTINGS) as stack:
        yield stack


async def ledger(stack: Stack) -> _Ledger:
    async with http_client() as http:
        answer = await http.get(f"{stack.simulator}/admin/ledger?entries=false")
    return _Ledger.model_validate_json(answer.content)


@pytest.mark.parametrize("kind", ["sync", "poll", "callback"])
async def test_a_batch_with_jobs_completes_although_a_worker_is_killed(stack: Stack, kind: Kind) -> None:
    model, upstream = f"by-{kind}", UPSTREAM[kind]
    url = stack.simulator + ("" if kind == "sync" else "/jobs")
    await register(stack, model, config_of(kind, url, upstream))
    lines = chat_lines([model], each=LINES)
    lines[:HELD] = [chat_line(f"line-{i:05d}", model, user="sim:hold*1") for i in range(HELD)]
    before = await stack.requests_by_id()

    async def are_held() -> bool:
        """Return True if the backend holds the requests, and a worker has stored their jobs."""
        at_work = (await ledger(stack)).models[upstream].in_flight
        return at_work == HELD and (kind == "sync" or await following(stack, model) == HELD)

    async with stack.client() as client:
        batch = await submit(client, lines)
        await settled(client, batch.id, LINES - HELD)
        await until(are_held)
        stack.kill("worker")
        await stack.heal()
        batch = await ended(client, batch.id)
        assert batch.status == "completed"
        await check_conservation(client, batch, lines)
        assert batch.request_counts is not None
        assert batch.request_counts.completed == LINES
    requests = {key: count for key, count in (await stack.requests_by_id()).items() if key not in before}
    assert len(requests) == LINES
    if kind != "sync":  # whose requests in flight die with the worker
        assert set(requests.values()) == {1}

    async def have_called_back() -> bool:
        return (await ledger(stack)).jobs.callbacks_sent >= LINES

    if kind == "callback":
        await until(have_called_back)


async def test_only_the_first_callback_to_the_right_url_counts(stack: Stack) -> None:
    backend = CallbackBackend("called")
    async with serving(backend) as url, stack.client() as client:
        await register(stack, "called", config_of("callback", url))
        lines = chat_lines(["called"], each=1)
        batch = await submit(client, lines)

        async def has_a_request() -> bool:
            return bool(backend.urls)

        await until(has_a_request)
        [right] = backend.urls
        wrong = await call(right[:-4] + "AAAA", {"result": {"mine": False}})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_callback_token")
        first = await call(right, {"status": "completed", "result": {"mine": True}})
        again = await call(right, {"status": "completed", "result": {"mine": False}})
        assert (first.json()["accepted"], again.json()["accepted"]) == (True, False)
        batch = await ended(client, batch.id)
        assert batch.status == "completed"
        [line] = await lines_of(client, batch.output_file_id)
        assert line.response is not None
        assert line.response.model_dump()["body"] == {"mine": True}
        assert backend.urls == [right]
        late = await call(right, {"result": {"mine": False}})
        assert late.json()["accepted"] is False


async def test_a_late_callback_is_refused_and_the_error_of_the_line_says_that_the_job_did_not_end(
    stack: Stack,
) -> None:
    backend = CallbackBackend("late")
    async with serving(backend) as url, stack.client() as client:
        config = config_of("callback", url, max_poll_time="1s")
        await register(stack, "late", {**config, "retries": {"max_attempts": 1}})
        batch = await submit(client, chat_lines(["late"], each=1))
        batch = await ended(client, batch.id)
        [line] = await lines_of(client, batch.error_file_id)
        assert line.error is not None
        assert line.error.code == "request_timeout"
        assert "did not end within 1 s" in line.error.message

        async def is_over() -> bool:
            return (await call(backend.urls[-1], {"result": {}})).status_code == 410

        await until(is_over)


async def test_a_job_that_runs_past_the_deadline_is_cancelled_and_a_resumption_starts_another(
    stack: Stack,
) -> None:
    backend = Patient("patient")
    lines = chat_lines(["patient"], each=1)
    async with serving(backend) as url, stack.client() as client:
        config = config_of("poll", url, cancel_endpoint_template="/cancel/{id}")
        await register(stack, "patient", config)
        batch = await expired(client, lines, lambda _: bool(backend.keys))
        assert (batch.status, batch.output_file_id) == ("expired", None)
        await check_conservation(client, batch, lines)
        [line] = await lines_of(client, batch.error_file_id)
        assert line.error is not None
        assert line.error.code == "batch_expired"
        await until(lambda: is_true(bool(backend.given_up)))
        assert (len(backend.keys), backend.given_up) == (1, ["j1"])
        backend.ends = True
        async with http_client() as http:
            answer = await http.post(f"{stack.now.api}/v1/batches/{batch.id}/x/resume")
        resumed = await ended(client, answer.raise_for_status().json()["id"])
        assert resumed.status == "completed"
        await check_conservation(client, resumed, lines)
        assert len(set(backend.keys)) == 2


async def test_a_callback_after_the_deadline_is_refused_and_the_files_do_not_change(stack: Stack) -> None:
    backend = CallbackBackend("overdue")
    lines = chat_lines(["overdue"], each=1)
    async with serving(backend) as url, stack.client() as client:
        await register(stack, "overdue", config_of("callback", url))
        batch = await expired(client, lines, lambda _: bool(backend.urls))
        assert (batch.status, len(backend.urls)) == ("expired", 1)
        errors = await lines_of(client, batch.error_file_id)

        async def is_over() -> bool:
            return (await call(backend.urls[0], {"result": {"late": True}})).status_code == 410

        await until(is_over)
        again = await client.batches.retrieve(batch.id)
        assert (again.output_file_id, again.error_file_id) == (None, batch.error_file_id)
        assert await lines_of(client, again.error_file_id) == errors


async def test_a_callback_within_the_grace_of_a_cancel_is_in_the_output(stack: Stack) -> None:
    backend = CallbackBackend("graced")
    lines = chat_lines(["graced"], each=1)
    async with serving(backend) as url, stack.client() as client:
        await register(stack, "graced", config_of("callback", url))
        batch = await submit(client, lines)

        async def has_a_request() -> bool:
            return bool(backend.urls)

        await until(has_a_request)
        cancelling = await client.batches.cancel(batch.id)
        response = await call(backend.urls[0], {"result": {"in": "time"}})
        assert (cancelling.status, response.json()["accepted"]) == ("cancelling", True)
        batch = await ended(client, batch.id)
        assert batch.status == "cancelled"
        await check_conservation(client, batch, lines)
        [line] = await lines_of(client, batch.output_file_id)
        assert line.response is not None
        assert line.response.model_dump()["body"] == {"in": "time"}


async def test_jobs_of_a_paused_batch_continue_and_are_found_again_after_resume(
    stack: Stack,
) -> None:
    backend = Patient("held")
    lines = chat_lines(["held"], each=JOBS)
    async with serving(backend) as url, stack.client() as client:
        await register(stack, "held", config_of("poll", url, cancel_endpoint_template="/cancel/{id}"))
        batch = await submit(client, lines)
        await until(lambda: is_true(len(backend.polls) == JOBS))
        await steer(stack, batch.id, "pause")
        await until(lambda: is_left(stack, "held"))
        polls_before = backend.polls.total()
        backend.ends = True
        await steer(stack, batch.id, "resume")
        batch = await ended(client, batch.id)
        assert batch.status == "completed"
        await check_conservation(client, batch, lines)
        assert batch.request_counts is not None
        assert batch.request_counts.completed == JOBS
    assert (len(backend.keys), len(set(backend.keys)), backend.given_up) == (JOBS, JOBS, [])
    assert backend.polls.total() >= polls_before + JOBS


async def test_callbacks_during_a_pause_and_after_a_worker_was_killed_are_found(stack: Stack) -> None:
    backend = CallbackBackend("heard")
    lines = chat_lines(["heard"], each=3)
    async with serving(backend) as url, stack.client() as client:
        await register(stack, "heard", config_of("callback", url))
        batch = await submit(client, lines)
        await until(lambda: is_true(len(backend.urls) == 3))
        await until(lambda: is_followed(stack, "heard", 3))
        assert (await call(backend.urls[0], {"result": {"n": 0}})).json()["accepted"]
        await settled(client, batch.id, 1)
        await steer(stack, batch.id, "pause")
        await until(lambda: is_left(stack, "heard"))
        assert (await call(backend.urls[1], {"result": {"n": 1}})).json()["accepted"]
        await steer(stack, batch.id, "resume")
        await settled(client, batch.id, 2)
        stack.kill("worker")
        assert (await call(backend.urls[2], {"result": {"n": 2}})).json()["accepted"]
        batch = await ended(client, batch.id)
        assert batch.status == "completed"
        await check_conservation(client, batch, lines)
        output = await lines_of(client, batch.output_file_id)
    answers = [line.response.model_dump()["body"]["n"] for line in output if line.response is not None]
    assert sorted(answers) == [0, 1, 2]
    assert len(backend.urls) == 3


async def is_true(holds: bool) -> bool:
    return holds


async def steer(stack: Stack, batch_id: str, verb: str) -> None:
    async with http_client() as http:
        (await http.post(f"{stack.now.api}/v1/batches/{batch_id}/x/{verb}")).raise_for_status()


async def is_left(stack: Stack, model: str) -> bool:
    """Return True if no worker waits for the result of a job of the model any longer."""
    return await is_followed(stack, model, 0)


async def is_followed(stack: Stack, model: str, jobs: int) -> bool:
    return await following(stack, model) == jobs


async def following(stack: Stack, model: str) -> float:
    """Return the number of the model's jobs whose results workers wait for."""
    async with http_client() as http:
        pages = [(await http.get(url)).text for url in stack.now.metrics]
    rows = [row for page in pages for row in page.splitlines()]
    named = [row for row in rows if row.startswith("batchwright_backend_jobs_running{")]
    return sum(float(row.split()[-1]) for row in named if f'model="{model}"' in row)
