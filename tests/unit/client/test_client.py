"""The Python client, over a fake API."""

import asyncio
import json
from collections.abc import Iterator
from threading import Event

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletion

from batchwright.client import (
    AsyncBatches,
    Batches,
    BatchHandle,
    Request,
    RequestFailed,
    Result,
    ResultsMissing,
    table,
)
from tests.unit.client.api import BATCH, Api

_MIXED = {"a": 200, "b": 400, "c": 400, "d": 200}
_BODY = {"model": "m"}
CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("connection", "batch_handle", "async_batch_handle"):
        monkeypatch.setattr(f"batchwright.client.{module}.RECONNECT_SECONDS", 0)


def handle_of(api: Api) -> BatchHandle:
    return Batches(api.client()).handle(BATCH)


def ids(results: list[Result]) -> list[str]:
    return [result.custom_id for result in results]


def input_lines(api: Api, upload: int = 0) -> list[dict[str, object]]:
    """Return the lines of the file in an upload."""
    uploads = [content for content in api.contents if b"form-data" in content]
    return [json.loads(line) for line in uploads[upload].split(b"\r\n") if line.startswith(b'{"custom_id"')
            for line in line.splitlines()]  # fmt: skip


def test_results_of_both_files_come_in_input_order_before_the_batch_ends() -> None:
    api = Api(_MIXED)

    def events() -> Iterator[bytes]:
        yield api.event(1)
        yield api.event(3)
        yield api.event(4, "completed")

    api.streams = [events()]
    seen = [(result.custom_id, api.status) for result in handle_of(api).results()]
    assert seen == [("a", "in_progress"), ("b", "in_progress"), ("c", "in_progress"), ("d", "completed")]


def test_results_continue_after_the_last_line_when_connections_break() -> None:
    api = Api({f"line-{n}": 200 if n % 3 else 400 for n in range(9)}, breaks_after=1)
    api.streams = [api.event(9, "completed")]
    assert ids(list(handle_of(api).results())) == list(api.outcomes)
    assert any("after" in request.url.params for request in api.sent(f"/batches/{BATCH}/x/results"))


def test_a_line_that_got_another_result_after_it_was_read_is_not_repeated() -> None:
    """The client continues after the old result of the line, which the API no longer knows."""
    api = Api(dict(_MIXED))

    def events() -> Iterator[bytes]:
        yield api.event(3)
        api.outcomes["c"] = 200
        yield api.event(4, "completed")

    api.streams = [events()]
    assert ids(list(handle_of(api).results())) == ["a", "b", "c", "d"]


def test_a_batch_that_is_followed_continues_after_its_last_event() -> None:
    api = Api(_MIXED)

    def broken() -> Iterator[bytes]:
        yield api.event(1)
        yield api.event(2)[:40]
        raise httpx2.ReadError("the connection broke")

    def rest() -> Iterator[bytes]:
        yield b": keep-alive\n\n"
        yield api.event(4, "completed")

    api.streams = [broken(), rest()]
    handle = handle_of(api)
    counts = [batch.request_counts.completed for batch in handle.follow() if batch.request_counts]
    assert (counts[-1], handle.batch.status) == (2, "completed")
    first, second = api.sent(f"/batches/{BATCH}/x/events")
    assert "last-event-id" not in first.headers
    assert second.headers["last-event-id"] == f"{1:024x}"


def test_waiting_lasts_until_the_files_are_written() -> None:
    api = Api(_MIXED, files_pending=True)

    def ended() -> Iterator[bytes]:
        yield api.event(4, "expired")

    def written() -> Iterator[bytes]:
        api.files_pending = False
        yield api.event(4, "expired")

    api.streams = [ended(), written()]
    assert handle_of(api).wait().status == "expired"
    assert len(api.sent(f"/batches/{BATCH}/x/events")) == 2


def test_lines_without_results_are_an_error_with_the_reasons() -> None:
    api = Api(_MIXED, errors=[{"line": 2, "message": "This line is not JSON.", "code": "invalid_json_line"}])
    api.streams = [api.event(0, "failed")]
    with pytest.raises(ResultsMissing, match=r"ended as failed, and 4 of its 4 lines .*line 2: This line is"):
        list(handle_of(api).results())


def test_an_error_that_lasts_is_raised() -> None:
    api = Api(_MIXED)

    def down(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    handle = handle_of(api)
    http = httpx2.Client(transport=httpx2.MockTransport(down))
    handle = BatchHandle(openai.OpenAI(api_key="unused", http_client=http, max_retries=0), handle.batch)
    with pytest.raises(openai.APIConnectionError):
        handle.wait()


def test_a_batch_that_was_deleted_is_an_error_at_once() -> None:
    api = Api(_MIXED)
    handle = handle_of(api)
    api.answers = [httpx2.Response(404, json={"error": {"message": "No such batch."}})]
    with pytest.raises(openai.NotFoundError):
        handle.wait()


def test_a_result_has_the_response_or_the_reason_of_its_failure() -> None:
    api = Api({"a": 200, "b": 400})
    api.streams = [api.event(2, "completed")]
    good, bad = handle_of(api).results()
    assert (good.status_code, good.error, good.body) == (200, None, {"id": "answer-0"})
    assert good.response(ChatCompletion).id == "answer-0"
    assert bad.error is not None
    assert (bad.status_code, bad.error.code, bad.error.message) == (400, "http_400", "Too long.")
    with pytest.raises(RequestFailed, match=r"'b' failed with http_400: Too long\."):
        bad.response(ChatCompletion)


def test_a_backend_cannot_reach_into_the_model_of_its_response() -> None:
    content = b'{"id": "answer", "_fields_set": 1, "__cls": 2}'
    response = Result("batch_req_0", "a", 200, None, content).response(ChatCompletion)
    assert (response.id, response.model_fields_set) == ("answer", {"id"})


def test_repeated_requests_create_one_batch() -> None:
    """The upload and the creation fail first. The official client repeats both."""
    api = Api(_MIXED)
    again = {"retry-after-ms": "1"}
    api.answers = [
        httpx2.Response(503, headers=again),
        httpx2.Response(200, json={"id": "file-input"}),
        httpx2.Response(503, headers=again),
    ]
    handle = Batches(api.client()).submit(
        [_BODY, {"model": "n"}], endpoint=CHAT, completion_window="2h", x_batchwright={"priority": 5}
    )
    assert handle.id == BATCH
    assert [request.url.path for request in api.requests] == ["/v1/files"] * 2 + ["/v1/batches"] * 2
    assert len({request.headers["idempotency-key"] for request in api.requests}) == 1
    assert input_lines(api, 0) == input_lines(api, 1)
    assert input_lines(api) == [
        {"custom_id": "request-0", "method": "POST", "url": CHAT, "body": {"model": "m"}},
        {"custom_id": "request-1", "method": "POST", "url": CHAT, "body": {"model": "n"}},
    ]
    assert json.loads(api.contents[-1]) == {
        "input_file_id": "file-input",
        "endpoint": CHAT,
        "completion_window": "2h",
        "metadata": None,
        "x_batchwright": {"priority": 5},
    }


def test_each_call_has_a_key_of_its_own_unless_one_is_given() -> None:
    api = Api(_MIXED)
    batches = Batches(api.client())
    for key in (None, None, "nightly"):
        batches.submit([_BODY], endpoint=CHAT, idempotency_key=key)
    first, second, third = (request.headers["idempotency-key"] for request in api.sent("/batches"))
    assert first != second
    assert third == "nightly"


def test_a_row_of_a_table_is_a_request_with_the_id_in_its_column() -> None:
    api = Api(_MIXED)
    rows = [{"id": 7, "text": "tide"}, {"id": 8, "text": "moon"}]
    requests = table(rows, lambda row: {"model": "m", "input": row["text"]}, id_column="id")
    Batches(api.client()).submit(requests, endpoint="/v1/embeddings")
    assert [(line["custom_id"], line["body"]) for line in input_lines(api)] == [
        ("7", {"model": "m", "input": "tide"}),
        ("8", {"model": "m", "input": "moon"}),
    ]
    numbered = table(rows, lambda row: {"input": row["text"]})
    assert list(numbered) == [{"input": "tide"}, {"input": "moon"}]


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "There are no requests"),
        ([Request("a", _BODY), Request("a", _BODY)], "The custom id 'a' occurs twice"),
        ([Request("\udce9.txt", _BODY)], r"The custom id '\\udce9.txt' is not valid text"),
        ([{"temperature": float("nan")}], "JSON"),
    ],
)
def test_requests_that_cannot_be_a_batch_are_refused_before_anything_is_sent(
    requests: list[Request | dict[str, object]], message: str
) -> None:
    api = Api(_MIXED)
    with pytest.raises(ValueError, match=message):
        Batches(api.client()).submit(requests, endpoint=CHAT)
    assert api.requests == []


def test_failed_lines_are_retried_by_code() -> None:
    api = Api(_MIXED)
    handle = handle_of(api)
    assert handle.retry_failed(["http_500"], completion_window="1h").id == BATCH
    handle.retry_failed()
    assert [request.url.path for request in api.requests[1:]] == [f"/v1/batches/{BATCH}/x/retry"] * 2
    assert json.loads(api.contents[1]) == {"codes": ["http_500"], "completion_window": "1h"}
    assert json.loads(api.contents[2]) == {}


async def test_the_event_loop_runs_while_the_asynchronous_client_reads_the_requests() -> None:
    api, goes_on = Api(_MIXED), Event()

    def slow_requests() -> Iterator[dict[str, object]]:
        assert goes_on.wait(5)
        yield {"model": "m"}

    asyncio.get_running_loop().call_soon(goes_on.set)
    handle = await AsyncBatches(api.async_client()).submit(slow_requests(), endpoint=CHAT)
    assert handle.id == BATCH


async def test_the_asynchronous_client_does_the_same() -> None:
    api = Api(_MIXED)
    api.streams = [api.event(1) + b": keep-alive\n\n", api.event(4, "completed")]
    api.event(0)
    batches = AsyncBatches(api.async_client())
    handle = await batches.submit([Request(id, _BODY) for id in _MIXED], endpoint=CHAT)
    assert [line["custom_id"] for line in input_lines(api)] == list(_MIXED)
    api.event(4, "completed")
    assert ids([result async for result in handle.results()]) == list(_MIXED)
    api.streams = [api.event(4, "completed")]
    assert [batch.status async for batch in handle.follow()] == ["completed"]
    again = await batches.handle(BATCH)
    assert (await again.wait()).status == "completed"
    assert ids([result async for result in again.results()]) == list(_MIXED)
    assert (await again.retry_failed()).id == BATCH
