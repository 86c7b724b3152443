"""Interactive calls, which the API sends to a backend immediately instead of in a batch."""

import asyncio
import json
from datetime import UTC, datetime

import httpx
import pytest
from openai import APIError, InternalServerError, NotFoundError, RateLimitError

from batchwright.api.services.calls.interactive_calls import client_settings
from batchwright.contracts.model_registry.backend_job_config import JobConfig
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.model_registry.registry_config import BackendConfig
from batchwright.database.records import BackendLoad
from batchwright.inference.client_pool import ClientPool
from batchwright.inference.transport.base import TargetUrl
from batchwright.inference.transport.httpx_transport import HttpxTransport
from tests.fakes.api import error_of, open_api
from tests.fakes.raw_servers import HEAD, answering, read_request, served
from tests.fakes.settings import load
from tests.unit.api.routes.calls.interactive_api import (
    ANSWER,
    ASK,
    CHAT,
    EVENTS,
    LAST,
    MESSAGES,
    A,
    B,
    Fixture,
    Pieces,
    answered,
    chunk,
    streamed,
)


async def test_the_answer_of_the_backend_is_passed_on_and_counted(api: Fixture) -> None:
    api.served.prices["llama"] = PriceConfig(input="1", output="2", currency="EUR")
    completion = await api.openai.chat.completions.create(model="llama", messages=MESSAGES)
    assert completion.choices[0].message.content == "Hello"
    assert json.loads(api.requests[0].content) == ASK
    assert api.counted("interactive_requests_total", model="llama", result="200") == 1
    assert api.counted("interactive_tokens_total", model="llama", kind="completion") == 10
    cost = api.counted("interactive_cost_total", model="llama", currency="EUR")
    assert cost == pytest.approx(40 / 1_000_000)
    assert await api.used_tokens() == 30


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/embeddings", "/v1/moderations", "/v1/responses", CHAT]
)
async def test_a_request_is_sent_to_the_same_path(api: Fixture, path: str) -> None:
    answer = await api.http.post(path, json={"model": "llama", "input": "x", "service_tier": "auto"})
    assert answer.json() == ANSWER
    assert api.requests[0].url == f"{A}{path}"
    assert json.loads(api.requests[0].content)["service_tier"] == "auto"


async def test_the_backend_gets_its_own_key_and_model_name_and_no_mark_of_batches(
    api: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKEND_KEY", "sk-of-the-backend")
    config = {"url": A, "model": "meta/llama", "api_key_env": "BACKEND_KEY", "headers": {"X-Team": "red"}}
    api.register(BackendConfig.model_validate({**config, "send_dispatch_header": True}))
    completion = await api.openai.chat.completions.with_raw_response.create(model="llama", messages=MESSAGES)
    [sent] = api.requests
    assert (sent.headers["authorization"], sent.headers["x-team"]) == ("Bearer sk-of-the-backend", "red")
    assert "x-source" not in sent.headers
    assert json.loads(sent.content)["model"] == "meta/llama"
    assert sent.headers["x-request-id"] == completion.headers["x-request-id"]
    assert "sk-of-the-backend" not in f"{completion.headers}{completion.text}"


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize(("of_batches", "sent"), [(10, 0), (-10, 0), (None, -100)])
async def test_no_tenant_overtakes_others_at_a_backend_that_has_priorities(
    api: Fixture, of_batches: int | None, sent: int, size: int
) -> None:
    api.register(BackendConfig(url=A, priority=of_batches))
    body = {**ASK, "priority": -100, "user": "u" * size}
    assert (await api.http.post(CHAT, json=body)).status_code == 200
    assert json.loads(api.requests[0].content) == {**body, "priority": sent}


async def test_a_stream_is_passed_on_as_it_is_and_its_usage_is_counted(api: Fixture) -> None:
    content = [chunk("He"), chunk("llo")[:20], chunk("llo")[20:], LAST]
    api.handlers[A] = lambda _: httpx.Response(200, headers=EVENTS, stream=Pieces(*content))
    assert await streamed(api, stream_options={"include_usage": True}) == ["He", "llo"]
    assert await api.used_tokens() == 30
    answer = await api.http.post(
        CHAT, json={**ASK, "stream": True, "stream_options": {"include_usage": True}}
    )
    assert answer.content == b"".join(content)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert api.counted("interactive_requests_total", model="llama", result="200") == 2


@pytest.mark.parametrize("encoding", ["identity", " Identity", ""])
async def test_a_stream_that_names_no_real_encoding_is_passed_on(api: Fixture, encoding: str) -> None:
    headers = {**EVENTS, "content-encoding": encoding}
    api.handlers[A] = lambda _: httpx.Response(200, headers=headers, stream=Pieces(chunk("Hello"), LAST))
    assert await streamed(api) == ["Hello"]


async def test_usage_is_requested_for_the_budgets_and_hidden_from_clients_that_did_not_ask(
    api: Fixture,
) -> None:
    api.handlers[A] = lambda _: httpx.Response(200, headers=EVENTS, stream=Pieces(chunk("Hello"), LAST))
    answer = await api.http.post(CHAT, json={**ASK, "stream": True, "stream_options": {"other": 1}})
    assert json.loads(api.requests[0].content)["stream_options"] == {"other": 1, "include_usage": True}
    assert answer.content == chunk("Hello") + b"\ndata: [DONE]\n\n"
    assert await api.used_tokens() == 30


async def test_a_stream_without_usage_is_counted_by_its_length(api: Fixture) -> None:
    content = Pieces(*(chunk("a") for _ in range(50)))
    api.handlers[A] = lambda _: httpx.Response(200, headers=EVENTS, stream=content)
    await streamed(api)
    assert await api.used_tokens() == 50 + len(api.requests[0].content) // 4


async def test_a_stream_that_breaks_off_ends_with_an_error_and_is_not_sent_again(api: Fixture) -> None:
    api.register(BackendConfig(url=A), BackendConfig(url=B))
    error = httpx.RemoteProtocolError("peer closed connection without sending complete message body")

    def broken(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=EVENTS, stream=Pieces(chunk("He"), chunk("llo")[:20], error=error))

    api.handlers |= {A: broken, B: broken}
    stream = await api.openai.chat.completions.create(model="llama", messages=MESSAGES, stream=True)
    first = await anext(stream)
    assert first.choices[0].delta.content == "He"
    with pytest.raises(APIError, match="The connection ended before the response was complete"):
        await anext(stream)
    assert len(api.requests) == 1
    assert api.counted("interactive_requests_total", model="llama", result="cut") == 1


@pytest.mark.parametrize("begun", [b"event: response.output_text.delta\n", b'data: {"choices": []}\n'])
async def test_the_error_of_a_stream_follows_whole_events(api: Fixture, begun: bytes) -> None:
    error = httpx.RemoteProtocolError("peer closed connection without sending complete message body")
    api.handlers[A] = lambda _: httpx.Response(
        200, headers=EVENTS, stream=Pieces(chunk("He"), chunk("llo") + begun, error=error)
    )
    stream = await api.openai.chat.completions.create(model="llama", messages=MESSAGES, stream=True)
    texts = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
    assert texts == ["He", "llo"]
    with pytest.raises(APIError, match="The connection ended before the response was complete"):
        await anext(stream)


async def test_an_answer_that_breaks_off_is_an_error(api: Fixture) -> None:
    error = httpx.ReadError("reset by 10.0.0.7")
    api.handlers[A] = lambda _: httpx.Response(200, stream=Pieces(b'{"id":', error=error))
    with pytest.raises(InternalServerError, match="connection ended") as raised:
        await api.openai.chat.completions.create(model="llama", messages=MESSAGES)
    assert raised.value.status_code == 502
    assert "10.0.0.7" not in str(raised.value)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_answer_that_is_too_large_ends(api: Fixture, is_stream: bool) -> None:
    pieces = Pieces(*[b"data: " + b"x" * 300_000 + b"\n\n"] * 9)
    api.handlers[A] = lambda _: httpx.Response(200, headers=EVENTS if is_stream else {}, stream=pieces)
    answer = await api.http.post(CHAT, json={**ASK, "stream": is_stream})
    assert b"The response is larger than" in answer.content
    assert len(answer.content) < 1_200_000
    assert api.counted("interactive_requests_total", model="llama", result="cut") == 1


@pytest.mark.parametrize(
    ("refusal", "shown"), [(429, 429), (503, 503), ("unreachable", 503), (401, 403), (403, 403)]
)
async def test_a_call_that_a_backend_refuses_goes_to_the_next_one(
    api: Fixture, refusal: int | str, shown: int
) -> None:
    def refused(_: httpx.Request) -> httpx.Response:
        if isinstance(refusal, str):
            raise httpx.ConnectError("refused by 10.0.0.7")
        return httpx.Response(refusal)

    api.register(BackendConfig(url=A), BackendConfig(url=B))
    api.handlers |= {A: refused, B: answered}
    while len(api.requests) < 2 or api.requests[-2].url.host != "a":  # until A has refused a call
        assert (await api.openai.chat.completions.create(model="llama", messages=MESSAGES)).id == "chatcmpl-1"
    api.handlers[B] = refused
    api.clock.now += 1
    answer = await api.http.post(CHAT, json=ASK)
    assert answer.status_code == shown
    assert ("retry-after" in answer.headers) == (shown != 403)
    assert "10.0.0.7" not in error_of(answer).message
    assert api.router is not None
    assert [upstream.outstanding for upstream in api.router.upstreams] == [0, 0]


async def test_a_call_that_a_backend_may_have_processed_is_not_sent_again(api: Fixture) -> None:
    def lost(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("Server disconnected")

    api.register(BackendConfig(url=A), BackendConfig(url=B))
    api.handlers |= {A: lost, B: lost}
    answer = await api.http.post(CHAT, json=ASK)
    assert (answer.status_code, len(api.requests)) == (502, 1)
    assert error_of(answer).type == "server_error"


async def test_a_backend_that_does_not_answer_in_time_is_a_504(api: Fixture) -> None:
    def late(_: httpx.Request) -> httpx.Response:
        raise TimeoutError

    api.handlers[A] = late
    assert (await api.http.post(CHAT, json=ASK)).status_code == 504


@pytest.mark.parametrize(
    ("status", "content", "shown", "text"),
    [
        (400, b'{"error":{"message":"too long","type":"invalid_request_error"}}', 400, "too long"),
        (404, b"<html>nginx 10.0.0.7</html>", 404, "The backend answered 404"),
        (401, b'{"error":{"message":"wrong key sk-secret"}}', 502, "credentials"),
        (403, b'{"error":{"message":"wrong key sk-secret"}}', 502, "credentials"),
        (402, b'{"error":{"message":"the account of sk-secret has no credit"}}', 502, "answered 402"),
        (302, b"", 502, "redirects"),
        (500, b'{"error":{"message":"at 10.0.0.7"}}', 500, "The backend answered 500"),
        (503, b"", 503, "The backend answered 503"),
        (200, b"<html>10.0.0.7</html>", 502, ""),
        (200, b'{"error":{"message":"wrong key sk-secret"}}', 502, "error"),
        (200, b"", 502, ""),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_error_of_the_backend_has_the_usual_shape_and_shows_no_secret(
    api: Fixture, status: int, content: bytes, shown: int, text: str, is_stream: bool
) -> None:
    api.handlers[A] = lambda _: httpx.Response(
        status, content=content, headers={"location": "http://10.0.0.7"}
    )
    answer = await api.http.post(CHAT, json={**ASK, "stream": is_stream})
    assert answer.status_code == shown
    assert text in json.loads(answer.content)["error"]["message"]
    assert "sk-secret" not in answer.text
    assert "10.0.0.7" not in answer.text


@pytest.mark.parametrize(
    ("content", "status", "code", "text"),
    [
        ("my secret", 403, "policy_rejected", "The request holds a secret."),
        ("a bug", 500, "hook_failed", "was not sent"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_a_call_that_a_hook_refuses_or_at_which_it_fails_is_not_sent(
    api: Fixture, content: str, status: int, code: str, text: str, path: str
) -> None:
    answer = await api.http.post(path, json={"model": "llama", "input": content})
    assert (answer.status_code, error_of(answer).code) == (status, code)
    assert text in error_of(answer).message
    assert "sk-of-the-operator" not in answer.text
    assert api.requests == []
    assert api.counted("interactive_requests_total", model="llama", result=str(status)) == 1


async def test_the_backend_gets_the_body_that_a_hook_returns(api: Fixture) -> None:
    answer = await api.http.post(CHAT, json={**ASK, "who": 1})
    expected = f"default llama {CHAT} {answer.headers['x-request-id']}"
    assert json.loads(api.requests[0].content) == {**ASK, "who": 1, "user": expected}


async def test_an_unknown_model_and_one_that_the_tenant_may_not_use_look_alike(api: Fixture) -> None:
    with pytest.raises(NotFoundError) as unknown:
        await api.openai.chat.completions.create(model="none", messages=MESSAGES)
    await api.database.quotas.change("default", {"models": ["other"]}, datetime.now(UTC))
    with pytest.raises(NotFoundError) as forbidden:
        await api.openai.chat.completions.create(model="llama", messages=MESSAGES)
    assert (unknown.value.code, forbidden.value.code) == ("model_not_found", "model_not_found")
    assert unknown.value.message.replace("none", "llama") == forbidden.value.message
    assert api.requests == []


async def test_a_daily_budget_and_the_quota_of_requests_apply(api: Fixture) -> None:
    await api.database.quotas.change("default", {"tokens_per_day": 25}, datetime.now(UTC))
    await api.openai.chat.completions.create(model="llama", messages=MESSAGES)
    with pytest.raises(RateLimitError, match="budget of 25 tokens") as used_up:
        await api.openai.chat.completions.create(model="llama", messages=MESSAGES)
    assert used_up.value.code == "insufficient_quota"
    await api.database.quotas.change("other", {"requests_per_minute": 1}, datetime.now(UTC))
    assert (await api.http.post(CHAT, json=ASK, headers={"X-Tenant": "other"})).status_code == 200
    assert (await api.http.post(CHAT, json=ASK, headers={"X-Tenant": "other"})).status_code == 429


async def test_calls_to_a_backend_that_hangs_leave_connections_for_calls_to_others() -> None:
    hanging, all_hang = 0, asyncio.Event()

    async def hangs(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        nonlocal hanging
        await read_request(reader)
        hanging += 1
        if hanging == 150:
            all_hang.set()
        await reader.read()

    clients = ClientPool(client_settings(load(interactive_passthrough=True)))

    async def ask(url: TargetUrl) -> int:
        client = clients.client_for(BackendConfig(url=f"http://127.0.0.1:{url.origin.port}"))
        async with client.stream(url, b"{}", "r-1") as response:
            return response.status

    async with served(hangs) as down, served(answering(HEAD + b"content-length: 2\r\n\r\n{}")) as up:
        waiting = [asyncio.create_task(ask(down)) for _ in range(150)]
        async with asyncio.timeout(60):
            await all_hang.wait()
            assert await ask(up) == 200
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await clients.aclose()


async def test_a_model_that_runs_jobs_is_refused(api: Fixture) -> None:
    api.register(BackendConfig(url=A), kind="poll", jobs=JobConfig(poll_endpoint_template="/status/{id}"))
    answer = await api.http.post(CHAT, json=ASK)
    assert (answer.status_code, error_of(answer).param) == (400, "model")


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"model": 1}', b"{}", b'{"model":"llama","stream":1}', b'{"model":"llama"', b"\xff"],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_a_body_that_makes_no_sense_is_refused(api: Fixture, path: str, body: bytes) -> None:
    answer = await api.http.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert error_of(answer).message
    assert api.requests == []


async def test_the_load_of_each_backend_is_published_while_calls_are_in_flight(api: Fixture) -> None:
    loads: list[BackendLoad] = []

    async def answer_later(_: httpx.Request) -> httpx.Response:
        loads.extend(await api.load())
        return httpx.Response(200, json=ANSWER)

    assert api.router is not None
    transport = HttpxTransport(httpx.MockTransport(answer_later), connect_seconds=1)
    api.router.upstreams[0].backend.client.set_transport(transport)
    await api.openai.chat.completions.create(model="llama", messages=MESSAGES)
    assert [(load.backend, load.in_flight) for load in loads] == [(A, 1)]
    assert api.retained == {"llama"}
    assert [load.in_flight for load in await api.load()] in ([], [0])
    assert api.retained == set()


async def test_calls_that_may_wait_still_do(api: Fixture) -> None:
    made = await api.openai.responses.create(model="llama", input="x", background=True)
    assert made.status == "queued"
    assert api.requests == []


@pytest.mark.parametrize(
    ("path", "status"),
    [(CHAT, 400), ("/v1/responses", 400), ("/v1/embeddings", 404), ("/v1/completions", 404)],
)
async def test_without_the_setting_calls_that_cannot_wait_are_refused(path: str, status: int) -> None:
    async with open_api() as api:
        answer = await api.http.post(path, json={**ASK, "input": "x"})
        assert answer.status_code == status


async def test_the_description_of_the_api_follows_the_setting(api: Fixture) -> None:
    async with open_api() as without:
        for app, needs_tier in ((api.app, False), (without.app, True)):
            paths = app.openapi()["paths"]
            chat = paths[CHAT]["post"]
            schema = chat["requestBody"]["content"]["application/json"]["schema"]
            assert ("service_tier" in schema["required"]) == needs_tier
            for each in (chat, paths["/v1/responses"]["post"]):
                assert ("502" in each["responses"], "504" in each["responses"]) == (not needs_tier,) * 2
