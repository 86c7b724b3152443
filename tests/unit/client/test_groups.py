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

from batchwright.client import (
    AsyncBatches,
    AsyncGroupHandle,
    Batches,
    BatchHandle,
    GroupHandle,
    PartsFailed,
    Request,
    ResultsMissing,
)
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
    """A connection to the API, which reports that a batch may have at most two lines."""

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


def group_of(client: OpenAI, name: str, key: str | None = None) -> GroupHandle:
    group = Batches(client).submit(
        requests(name), endpoint=CHAT, metadata={"team": name}, idempotency_key=key
    )
    assert isinstance(group, GroupHandle)
    return group


def end(cli: Cli, handle: BatchHandle) -> None:
    """Complete the batch of a handle with a result for each of its lines, which repeats its custom id."""
    row = cli.row(handle.id)
    key = cli.api.database.rows.files["default", row.order.input_file_id].storage_key
    lines = cli.api.storage.objects[key].splitlines()
    ids = [json.loads(line)["custom_id"] for line in lines]
    results = (
        result_line(f"batch_req_{n}", id, status_code=200, backend_request_id="", body=f'"{id}"'.encode())
        for n, id in enumerate(ids)
    )
    cli.end(handle.id, output=b"".join(line + b"\n" for line in results))


def test_too_many_requests_become_a_group(client: OpenAI) -> None:
    group = group_of(client, "many")
    metadata = [each.batch.metadata or {} for each in group.handles]
    assert [(m["team"], m["batchwright.group"], m["batchwright.part"]) for m in metadata] == [
        ("many", group.id, f"{number}/3") for number in (1, 2, 3)
    ]
    assert not isinstance(Batches(client).submit(requests("few", 2), endpoint=CHAT), GroupHandle)


def test_results_of_a_group_come_in_the_order_of_the_requests(cli: Cli, client: OpenAI) -> None:
    group = group_of(client, "ordered")
    for each in reversed(group.handles):
        end(cli, each)
    expected = [request.custom_id for request in requests("ordered")]
    assert [result.body for result in group.results()] == expected
    again = Batches(client).handle(group.id)
    assert again.wait().status == "completed"
    assert [result.custom_id for result in again.results()] == expected


def test_a_group_raises_an_error_at_the_first_batch_without_results(cli: Cli, client: OpenAI) -> None:
    """Results of the third batch must not take the place of the missing results of the second."""
    group = group_of(client, "gap")
    first, second, third = group.handles
    end(cli, first)
    cli.end(second.id, BatchStatus.FAILED)
    end(cli, third)
    results = group.results()
    read = [next(results).custom_id for _ in range(2)]
    with pytest.raises(ResultsMissing, match=f"{second.id} ended as failed, and 2 of its 2 lines"):
        next(results)
    assert read == ["gap-0", "gap-1"]
    assert [result.custom_id for result in third.results()] == ["gap-4"]


def test_the_state_of_a_group_is_that_of_the_batch_that_is_worst(cli: Cli, client: OpenAI) -> None:
    group = group_of(client, "states")
    first, second, third = group.handles
    end(cli, first)
    assert Batches(client).handle(group.id).batch.status == "validating"
    cli.end(second.id, BatchStatus.EXPIRED)
    end(cli, third)
    states = list(group.follow())
    assert (states[-1].id, states[-1].status) == (group.id, "expired")


def test_a_key_makes_a_group_once(cli: Cli, client: OpenAI) -> None:
    first = group_of(client, "keyed", key="key-1")
    again = group_of(client, "keyed", key="key-1")
    assert (first.id, [each.id for each in first.handles]) == (again.id, [each.id for each in again.handles])
    assert group_of(client, "keyed").id != group_of(client, "keyed").id


def test_the_id_of_a_group_depends_on_the_given_arguments_only(client: OpenAI) -> None:
    """If a newer client has a new argument, the id stays the same. So it finds the groups of an
    older client.
    """
    assert group_of(client, "fixed", key="fixed-key").id == "group_1a419dd0a90dfc9d6c452853b6fa7946"


def test_a_group_that_is_unknown_or_incomplete_is_an_error(client: OpenAI) -> None:
    with pytest.raises(LookupError, match="There is no group group_1"):
        Batches(client).handle("group_1")
    metadata = {"batchwright.group": "group_2", "batchwright.part": "1/3"}
    Batches(client).submit(requests("part", 1), endpoint=CHAT, metadata=metadata)
    with pytest.raises(LookupError, match="batches for 1 of its 3 parts"):
        Batches(client).handle("group_2")
    with pytest.raises(openai.NotFoundError):
        Batches(client).handle("batch_" + "0" * 32)


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
        group = await AsyncBatches(own).submit(requests("async"), endpoint=CHAT)
        assert isinstance(group, AsyncGroupHandle)
        for each in group_handles(client, group.id):
            await asyncio.to_thread(end, cli, each)
        again = await AsyncBatches(own).handle(group.id)
        assert (await again.wait()).status == "completed"
        found = [result.custom_id async for result in group.results()]
    assert found == [request.custom_id for request in requests("async")]


def group_handles(client: OpenAI, group_id: str) -> list[BatchHandle]:
    group = Batches(client).handle(group_id)
    assert isinstance(group, GroupHandle)
    return group.handles


def test_a_key_that_may_not_read_submits_within_openais_limits() -> None:
    forbidden = httpx2.Response(403, json={"error": {"message": "Not allowed."}})
    api = Api({"a-0": 200}, limits=forbidden)
    group = Batches(api.client()).submit(requests("a", 1), endpoint=CHAT)
    assert not isinstance(group, GroupHandle)
    assert len(api.sent("/batches")) == 1


async def test_an_asynchronous_client_that_may_not_read_submits_too() -> None:
    forbidden = httpx2.Response(403, json={"error": {"message": "Not allowed."}})
    api = Api({"a-0": 200}, limits=forbidden)
    await AsyncBatches(api.async_client()).submit(requests("a", 1), endpoint=CHAT)
    assert len(api.sent("/batches")) == 1


def failed_group(cli: Cli, client: OpenAI, name: str) -> GroupHandle:
    """Return a group whose first batch is completed, and whose other two have a failed line."""
    group = group_of(client, name)
    end(cli, group.handles[0])
    for each, code in zip(
        group.handles[1:], (LineCode.REQUEST_TIMEOUT, LineCode.CONNECTION_ERROR), strict=True
    ):
        key = cli.api.database.rows.files["default", each.batch.input_file_id].storage_key
        custom_id = json.loads(cli.api.storage.objects[key].splitlines()[0])["custom_id"]
        line = error_line(request_id(each.id, 0), custom_id, code, "no")
        cli.end(each.id, error=line + b"\n", errors_summary=[ErrorCount(code=code, count=1)])
    return group


def test_retry_failed_of_a_group_retries_each_batch_with_failed_lines_once(cli: Cli, client: OpenAI) -> None:
    group = failed_group(cli, client, "retried")
    retries = group.retry_failed()
    assert retries.id == group.id
    origins = [cli.row(each.id).order.origin for each in retries.handles]
    assert [origin and origin.batch_id for origin in origins] == [each.id for each in group.handles[1:]]
    assert [each.id for each in group.retry_failed().handles] == [each.id for each in retries.handles]
    for each in retries.handles:
        end(cli, each)
    assert [result.custom_id for result in retries.results()] == ["retried-2", "retried-4"]


def test_retry_failed_of_a_group_with_codes_retries_only_the_batches_that_have_them(
    cli: Cli, client: OpenAI
) -> None:
    group = failed_group(cli, client, "coded")
    with pytest.raises(ValueError, match="no line that failed with job_lost"):
        group.retry_failed(["job_lost"])
    (retry,) = group.retry_failed(["request_timeout"]).handles
    origin = cli.row(retry.id).order.origin
    assert origin is not None
    assert origin.batch_id == group.handles[1].id


def test_a_group_that_runs_is_not_retried_and_not_deleted(cli: Cli, client: OpenAI) -> None:
    group = group_of(client, "live")
    end(cli, group.handles[0])
    for call in (group.retry_failed, group.delete):
        with pytest.raises(ValueError, match="have not ended") as error:
            call()
        assert all(each.id in str(error.value) for each in group.handles[1:])
    assert cli.row(group.handles[0].id).status is BatchStatus.COMPLETED


def test_pause_resume_and_cancel_reach_the_batches_that_run(cli: Cli, client: OpenAI) -> None:
    group = group_of(client, "paused")
    end(cli, group.handles[0])
    live = [each.id for each in group.handles[1:]]
    for name, call in (("pause", group.pause), ("resume", group.resume), ("cancel", group.cancel)):
        call()
        sent = [id for id, signal in cli.api.temporal.signals if signal == name]
        assert sent[-2:] == live
    assert group.batch.status == "cancelling"


def test_a_batch_that_ends_while_its_group_is_paused_is_no_error(
    cli: Cli, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, pause = group_of(client, "ending"), BatchHandle.pause

    def pause_after_an_end(each: BatchHandle) -> Batch:
        if each.id == group.handles[0].id:
            end(cli, group.handles[1])
        return pause(each)

    monkeypatch.setattr(BatchHandle, "pause", pause_after_an_end)
    group.pause()
    assert [each.batch.status for each in group.handles[:2]] == ["validating", "completed"]


def test_a_group_that_was_cancelled_is_resumed_once(cli: Cli, client: OpenAI) -> None:
    group = group_of(client, "resumed")
    end(cli, group.handles[0])
    for each in group.handles[1:]:
        cli.end(each.id, BatchStatus.CANCELLED, output=b"{}\n")
    resumed = group.resume(completion_window="3h")
    assert resumed.handles[0].id == group.handles[0].id
    assert [each.batch.completion_window for each in resumed.handles[1:]] == ["3h", "3h"]
    assert [each.id for each in group.resume().handles] == [each.id for each in resumed.handles]
    found = Batches(client).handle(group.id)
    assert isinstance(found, GroupHandle)
    assert [each.id for each in found.handles] == [each.id for each in resumed.handles]


def test_calls_that_are_rejected_name_their_batches_and_can_be_repeated(cli: Cli, client: OpenAI) -> None:
    group = failed_group(cli, client, "rejected")
    second = group.handles[1].id
    _Limited.rejected = f"/v1/batches/{second}/x/retry"
    try:
        with pytest.raises(PartsFailed, match=f"{group.id}: {second}: .*Not now") as failed:
            group.retry_failed()
    finally:
        _Limited.rejected = ""
    assert list(failed.value.errors) == [second]
    assert len(group.retry_failed().handles) == 2


def test_a_group_is_deleted_with_its_reruns(cli: Cli, client: OpenAI) -> None:
    group = failed_group(cli, client, "deleted")
    retries = group.retry_failed()
    for each in retries.handles:
        end(cli, each)
    group.delete()
    for each in (*group.handles, *retries.handles):
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve(each.id)
    group.delete()
    with pytest.raises(LookupError, match="There is no group"):
        Batches(client).handle(group.id)


async def test_the_asynchronous_group_can_do_the_same(cli: Cli, client: OpenAI) -> None:
    sync = await asyncio.to_thread(failed_group, cli, client, "async")
    async with AsyncOpenAI(base_url=f"{cli.url}/v1", api_key="unused") as asynchronous:
        group = await AsyncBatches(asynchronous).handle(sync.id)
        assert isinstance(group, AsyncGroupHandle)
        retries = await group.retry_failed()
        assert [each.batch.status for each in retries.handles] == ["validating", "validating"]
        await retries.pause()
        await retries.resume()
        await retries.cancel()
        for each in retries.handles:
            await asyncio.to_thread(cli.end, each.id, BatchStatus.CANCELLED)
        await group.delete(keep_files=True)
        with pytest.raises(LookupError):
            await AsyncBatches(asynchronous).handle(sync.id)
