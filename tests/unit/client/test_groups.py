"""The Python client with more requests than a batch may have, over the real API with fake dependencies."""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import Batch

from batchwright.client import AsyncBatches, AsyncJobGroup, Batches, Job, JobGroup, PartsFailed, Request
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import ErrorCount
from batchwright.contracts.terms import BatchStatus
from batchwright.rules.ids import request_id
from batchwright.rules.results.output_lines import error_line, result_line
from tests.unit.client.api import Api
from tests.unit.starter.cli import Cli, served

CHAT = "/v1/chat/completions"
LIMITS = {"max_lines": 2, "max_batch_file_bytes": 1_000_000}


@pytest.fixture(scope="module")
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


class _Limited(httpx2.HTTPTransport):
    """Connections to the API, which reports that a batch may have at most two lines."""

    rejected = ""  # path of the requests that are rejected

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/x/limits":
            return httpx2.Response(200, json=LIMITS)
        if request.url.path == self.rejected:
            return httpx2.Response(409, json={"error": {"message": "Not now."}})
        return super().handle_request(request)


@pytest.fixture
def client(cli: Cli) -> Generator[OpenAI]:
    http = httpx2.Client(transport=_Limited())
    with OpenAI(base_url=f"{cli.url}/v1", api_key="unused", http_client=http) as client:
        yield client


def requests(name: str, count: int = 5) -> list[Request]:
    body = {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}
    return [Request(f"{name}-{number}", body) for number in range(count)]


def group_of(client: OpenAI, name: str, key: str | None = None) -> JobGroup:
    job = Batches(client).submit(requests(name), endpoint=CHAT, metadata={"team": name}, idempotency_key=key)
    assert isinstance(job, JobGroup)
    return job


def end(cli: Cli, job: Job) -> None:
    """Complete the batch of a job with a result for each of its lines, which repeats its custom id."""
    row = cli.row(job.id)
    key = cli.api.database.rows.files["default", row.order.input_file_id].storage_key
    lines = cli.api.storage.objects[key].splitlines()
    ids = [json.loads(line)["custom_id"] for line in lines]
    results = (
        result_line(f"batch_req_{n}", id, status_code=200, backend_request_id="", body=f'"{id}"'.encode())
        for n, id in enumerate(ids)
    )
    cli.end(job.id, output=b"".join(line + b"\n" for line in results))


def test_too_many_requests_become_a_group(client: OpenAI) -> None:
    job = group_of(client, "many")
    metadata = [each.batch.metadata or {} for each in job.jobs]
    assert [(m["team"], m["batchwright.group"], m["batchwright.part"]) for m in metadata] == [
        ("many", job.id, f"{number}/3") for number in (1, 2, 3)
    ]
    assert not isinstance(Batches(client).submit(requests("few", 2), endpoint=CHAT), JobGroup)


def test_results_of_a_group_come_in_the_order_of_the_requests(cli: Cli, client: OpenAI) -> None:
    job = group_of(client, "ordered")
    for each in reversed(job.jobs):
        end(cli, each)
    expected = [request.custom_id for request in requests("ordered")]
    assert [result.body for result in job.results()] == expected
    again = Batches(client).job(job.id)
    assert again.wait().status == "completed"
    assert [result.custom_id for result in again.results()] == expected


def test_the_state_of_a_group_is_that_of_the_batch_that_is_worst(cli: Cli, client: OpenAI) -> None:
    job = group_of(client, "states")
    first, second, third = job.jobs
    end(cli, first)
    assert Batches(client).job(job.id).batch.status == "validating"
    cli.end(second.id, BatchStatus.EXPIRED)
    end(cli, third)
    states = list(job.follow())
    assert (states[-1].id, states[-1].status) == (job.id, "expired")


def test_a_key_makes_a_group_once(cli: Cli, client: OpenAI) -> None:
    first = group_of(client, "keyed", key="key-1")
    again = group_of(client, "keyed", key="key-1")
    assert (first.id, [job.id for job in first.jobs]) == (again.id, [job.id for job in again.jobs])
    assert group_of(client, "keyed").id != group_of(client, "keyed").id


def test_the_id_of_a_group_depends_on_the_given_arguments_only(client: OpenAI) -> None:
    """A new argument does not change this id, so that a newer client finds the groups of an older one."""
    assert group_of(client, "fixed", key="fixed-key").id == "group_1a419dd0a90dfc9d6c452853b6fa7946"


def test_a_group_that_is_unknown_or_incomplete_is_an_error(client: OpenAI) -> None:
    with pytest.raises(LookupError, match="There is no group group_1"):
        Batches(client).job("group_1")
    metadata = {"batchwright.group": "group_2", "batchwright.part": "1/3"}
    Batches(client).submit(requests("part", 1), endpoint=CHAT, metadata=metadata)
    with pytest.raises(LookupError, match="batches for 1 of its 3 parts"):
        Batches(client).job("group_2")
    with pytest.raises(openai.NotFoundError):
        Batches(client).job("batch_" + "0" * 32)


class _AsyncLimited(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/x/limits":
            return httpx2.Response(200, json=LIMITS)
        return await super().handle_async_request(request)


@asynccontextmanager
async def async_client(cli: Cli) -> AsyncGenerator[AsyncOpenAI]:
    http = httpx2.AsyncClient(transport=_AsyncLimited())
    async with AsyncOpenAI(base_url=f"{cli.url}/v1", api_key="unused", http_client=http) as client:
        yield client


async def test_the_asynchronous_client_has_groups_too(cli: Cli, client: OpenAI) -> None:
    async with async_client(cli) as own:
        job = await AsyncBatches(own).submit(requests("async"), endpoint=CHAT)
        assert isinstance(job, AsyncJobGroup)
        for each in group_jobs(client, job.id):
            await asyncio.to_thread(end, cli, each)
        again = await AsyncBatches(own).job(job.id)
        assert (await again.wait()).status == "completed"
        found = [result.custom_id async for result in job.results()]
    assert found == [request.custom_id for request in requests("async")]


def group_jobs(client: OpenAI, group: str) -> list[Job]:
    job = Batches(client).job(group)
    assert isinstance(job, JobGroup)
    return job.jobs


def test_a_key_that_may_not_read_submits_within_openais_limits() -> None:
    forbidden = httpx2.Response(403, json={"error": {"message": "Not allowed."}})
    api = Api({"a-0": 200}, limits=forbidden)
    job = Batches(api.client()).submit(requests("a", 1), endpoint=CHAT)
    assert not isinstance(job, JobGroup)
    assert len(api.sent("/batches")) == 1


async def test_an_asynchronous_client_that_may_not_read_submits_too() -> None:
    forbidden = httpx2.Response(403, json={"error": {"message": "Not allowed."}})
    api = Api({"a-0": 200}, limits=forbidden)
    await AsyncBatches(api.async_client()).submit(requests("a", 1), endpoint=CHAT)
    assert len(api.sent("/batches")) == 1


def failed_group(cli: Cli, client: OpenAI, name: str) -> JobGroup:
    """Return a group whose first batch is completed, and whose other two have a failed line."""
    job = group_of(client, name)
    end(cli, job.jobs[0])
    for each, code in zip(job.jobs[1:], (LineCode.REQUEST_TIMEOUT, LineCode.CONNECTION_ERROR), strict=True):
        key = cli.api.database.rows.files["default", each.batch.input_file_id].storage_key
        custom_id = json.loads(cli.api.storage.objects[key].splitlines()[0])["custom_id"]
        line = error_line(request_id(each.id, 0), custom_id, code, "no")
        cli.end(each.id, error=line + b"\n", errors_summary=[ErrorCount(code=code, count=1)])
    return job


def test_retry_failed_of_a_group_retries_each_batch_with_failed_lines_once(cli: Cli, client: OpenAI) -> None:
    job = failed_group(cli, client, "retried")
    retries = job.retry_failed()
    assert retries.id == job.id
    origins = [cli.row(each.id).order.origin for each in retries.jobs]
    assert [origin and origin.batch_id for origin in origins] == [each.id for each in job.jobs[1:]]
    assert [each.id for each in job.retry_failed().jobs] == [each.id for each in retries.jobs]
    for each in retries.jobs:
        end(cli, each)
    assert [result.custom_id for result in retries.results()] == ["retried-2", "retried-4"]


def test_retry_failed_of_a_group_with_codes_retries_only_the_batches_that_have_them(
    cli: Cli, client: OpenAI
) -> None:
    job = failed_group(cli, client, "coded")
    with pytest.raises(ValueError, match="no line that failed with job_lost"):
        job.retry_failed(["job_lost"])
    (retry,) = job.retry_failed(["request_timeout"]).jobs
    origin = cli.row(retry.id).order.origin
    assert origin is not None
    assert origin.batch_id == job.jobs[1].id


def test_a_group_that_runs_is_not_retried_and_not_deleted(cli: Cli, client: OpenAI) -> None:
    job = group_of(client, "live")
    end(cli, job.jobs[0])
    for call in (job.retry_failed, job.delete):
        with pytest.raises(ValueError, match="have not ended") as error:
            call()
        assert all(each.id in str(error.value) for each in job.jobs[1:])
    assert cli.row(job.jobs[0].id).status is BatchStatus.COMPLETED


def test_pause_resume_and_cancel_reach_the_batches_that_run(cli: Cli, client: OpenAI) -> None:
    job = group_of(client, "paused")
    end(cli, job.jobs[0])
    live = [each.id for each in job.jobs[1:]]
    for name, call in (("pause", job.pause), ("resume", job.resume), ("cancel", job.cancel)):
        call()
        sent = [id for id, signal in cli.api.temporal.signals if signal == name]
        assert sent[-2:] == live
    assert job.batch.status == "cancelling"


def test_a_batch_that_ends_while_its_group_is_paused_is_no_error(
    cli: Cli, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, pause = group_of(client, "ending"), Job.pause

    def pause_after_an_end(each: Job) -> Batch:
        if each.id == job.jobs[0].id:
            end(cli, job.jobs[1])
        return pause(each)

    monkeypatch.setattr(Job, "pause", pause_after_an_end)
    job.pause()
    assert [each.batch.status for each in job.jobs[:2]] == ["validating", "completed"]


def test_a_group_that_was_cancelled_is_resumed_once(cli: Cli, client: OpenAI) -> None:
    job = group_of(client, "resumed")
    end(cli, job.jobs[0])
    for each in job.jobs[1:]:
        cli.end(each.id, BatchStatus.CANCELLED, output=b"{}\n")
    resumed = job.resume(completion_window="3h")
    assert resumed.jobs[0].id == job.jobs[0].id
    assert [each.batch.completion_window for each in resumed.jobs[1:]] == ["3h", "3h"]
    assert [each.id for each in job.resume().jobs] == [each.id for each in resumed.jobs]
    found = Batches(client).job(job.id)
    assert isinstance(found, JobGroup)
    assert [each.id for each in found.jobs] == [each.id for each in resumed.jobs]


def test_calls_that_are_rejected_name_their_batches_and_can_be_repeated(cli: Cli, client: OpenAI) -> None:
    job = failed_group(cli, client, "rejected")
    second = job.jobs[1].id
    _Limited.rejected = f"/v1/batches/{second}/x/retry"
    try:
        with pytest.raises(PartsFailed, match=f"{job.id}: {second}: .*Not now") as failed:
            job.retry_failed()
    finally:
        _Limited.rejected = ""
    assert list(failed.value.errors) == [second]
    assert len(job.retry_failed().jobs) == 2


def test_a_group_is_deleted_with_its_reruns(cli: Cli, client: OpenAI) -> None:
    job = failed_group(cli, client, "deleted")
    retries = job.retry_failed()
    for each in retries.jobs:
        end(cli, each)
    job.delete()
    for each in (*job.jobs, *retries.jobs):
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve(each.id)
    job.delete()
    with pytest.raises(LookupError, match="There is no group"):
        Batches(client).job(job.id)


async def test_the_asynchronous_group_can_do_the_same(cli: Cli, client: OpenAI) -> None:
    sync = await asyncio.to_thread(failed_group, cli, client, "async")
    async with AsyncOpenAI(base_url=f"{cli.url}/v1", api_key="unused") as asynchronous:
        job = await AsyncBatches(asynchronous).job(sync.id)
        assert isinstance(job, AsyncJobGroup)
        retries = await job.retry_failed()
        assert [each.batch.status for each in retries.jobs] == ["validating", "validating"]
        await retries.pause()
        await retries.resume()
        await retries.cancel()
        for each in retries.jobs:
            await asyncio.to_thread(cli.end, each.id, BatchStatus.CANCELLED)
        await job.delete(keep_files=True)
        with pytest.raises(LookupError):
            await AsyncBatches(asynchronous).job(sync.id)
