"""Circuit breakers of backends that interactive calls use, and fallback models."""

import asyncio
import json
import math
from collections.abc import Callable

import httpx
import pytest

from batchwright.contracts.model_registry.job_config import JobConfig
from batchwright.contracts.model_registry.registry_config import BackendConfig
from batchwright.inference.transport.httpx_transport import HttpxTransport
from tests.fakes.api import error_of
from tests.unit.api.routes.calls.interactive_api import (
    ANSWER,
    ASK,
    CHAT,
    EVENTS,
    LAST,
    A,
    B,
    Fixture,
    Pieces,
    answered,
    chunk,
    streamed,
)

STREAM: dict[str, object] = {**ASK, "stream": True}
C = "http://c"


def unreachable(_: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


def hung(_: httpx.Request) -> httpx.Response:
    raise TimeoutError


def cut(_: httpx.Request) -> httpx.Response:
    error = httpx.RemoteProtocolError("peer closed connection without sending complete message body")
    return httpx.Response(200, headers=EVENTS, stream=Pieces(chunk("He"), error=error))


def page(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=b"<html>")


def events(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers=EVENTS, stream=Pieces(chunk("Hello"), LAST))


def stream_of(*pieces: bytes) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(200, headers=EVENTS, stream=Pieces(*pieces))


def status(code: int) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(code, json={"error": {"message": "no"}})


def is_probe(request: httpx.Request) -> bool:
    return b"ping" in request.content or request.method == "GET"


def calls_to(api: Fixture, url: str) -> int:
    return sum(f"http://{each.url.host}" == url and not is_probe(each) for each in api.requests)


async def opened(api: Fixture, *backends: str, body: object = ASK) -> None:
    """Send calls until the circuits of the backends are open."""
    assert api.router is not None
    for _ in range(40):
        await api.http.post(CHAT, json=body)
        await api.calls.reports.ended()
        if all(each.circuit.is_open for each in api.router.upstreams if each.backend.url in backends):
            return
    raise AssertionError("the circuits stay closed")


@pytest.mark.parametrize(
    ("failing", "body"),
    [
        (status(500), ASK),
        (status(502), ASK),
        (status(429), ASK),
        (status(401), ASK),
        (unreachable, ASK),
        (hung, ASK),
        (page, ASK),
        (cut, STREAM),
        (status(500), STREAM),
        (stream_of(), STREAM),
        (stream_of(b": ping\n\n", b"data: [DONE]\n\n"), STREAM),
        (stream_of(b'data: {"error": {"message": "no"}}\n\n'), STREAM),
        (stream_of(b'event: error\ndata: {"type": "error", "code": "server_error"}\n\n'), STREAM),
        (stream_of(chunk("He"), b'data: {"error": {"message": "EngineCore died"}}\n\n'), STREAM),
    ],
)
async def test_a_backend_that_fails_gets_no_more_calls_while_another_one_works(
    api: Fixture, failing: Callable[[httpx.Request], httpx.Response], body: object
) -> None:
    api.register(BackendConfig(url=A), BackendConfig(url=B))
    api.handlers |= {A: failing, B: answered if body is ASK else events}
    await opened(api, A, body=body)
    before = calls_to(api, A)
    for _ in range(10):
        answer = await api.http.post(CHAT, json=body)
        assert answer.status_code == 200
        assert b"Hello" in answer.content
    assert calls_to(api, A) == before
    assert api.router is not None
    assert [each.outstanding for each in api.router.upstreams] == [0, 0]


@pytest.mark.parametrize(
    ("failing", "reason"),
    [
        (status(500), "The backend answered 500."),
        (unreachable, "could not be reached"),
        (status(401), "credentials that the operator has configured"),
    ],
)
@pytest.mark.parametrize("body", [ASK, STREAM])
async def test_if_all_circuits_are_open_the_answer_says_when_to_try_again(
    api: Fixture, failing: Callable[[httpx.Request], httpx.Response], reason: str, body: object
) -> None:
    api.register(BackendConfig(url=A), BackendConfig(url=B))
    api.handlers |= {A: failing, B: failing}
    await opened(api, A, B, body=body)
    api.requests.clear()
    answer = await api.http.post(CHAT, json=body)
    error = error_of(answer)
    assert (answer.status_code, error.type) == (503, "server_error")
    assert reason in error.message
    assert api.router is not None
    wait = api.router.wait_seconds()
    assert wait > 0
    assert int(answer.headers["retry-after"]) == math.ceil(wait)
    assert api.requests == []


async def test_one_call_at_a_time_tries_a_backend_whose_circuit_is_open(api: Fixture) -> None:
    api.handlers[A] = status(500)
    await opened(api, A)
    assert api.router is not None
    arrived, answers = asyncio.Event(), asyncio.Event()

    async def later(_: httpx.Request) -> httpx.Response:
        arrived.set()
        await answers.wait()
        return httpx.Response(200, json=ANSWER)

    backend = api.router.upstreams[0].backend
    backend.client.set_transport(HttpxTransport(httpx.MockTransport(later), connect_seconds=1))
    api.clock.now += 2
    trial = asyncio.create_task(api.http.post(CHAT, json=ASK))
    await arrived.wait()
    assert (await api.http.post(CHAT, json=ASK)).status_code == 503
    answers.set()
    assert (await trial).status_code == 200
    assert not api.router.is_open
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200


async def test_a_failed_trial_keeps_the_circuit_open_for_longer(api: Fixture) -> None:
    api.handlers[A] = unreachable
    await opened(api, A)
    assert api.router is not None
    first = api.router.wait_seconds()
    api.clock.now += first
    assert (await api.http.post(CHAT, json=ASK)).status_code == 503
    assert api.router.wait_seconds() > first


async def test_the_first_event_of_a_stream_closes_the_circuit(api: Fixture) -> None:
    api.handlers[A] = unreachable
    await opened(api, A)
    api.clock.now += 2
    begun = Pieces(chunk("He"), hangs=True)
    api.handlers[A] = lambda _: httpx.Response(200, headers=EVENTS, stream=begun)
    streaming = asyncio.create_task(streamed(api))
    await begun.is_hanging.wait()
    api.handlers[A] = answered
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)


async def test_calls_that_crash_only_themselves_do_not_stop_the_calls_of_others(api: Fixture) -> None:
    def crashes(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500) if b"poison" in request.content else answered(request)

    api.handlers[A] = crashes
    poison = {**ASK, "user": "poison"}
    same_id = {"X-Request-Id": "always-the-same"}
    assert [(await api.http.post(CHAT, json=poison, headers=same_id)).status_code for _ in range(30)] == [
        500
    ] * 30
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200


async def test_errors_of_the_client_do_not_open_a_circuit(api: Fixture) -> None:
    api.handlers[A] = status(400)
    assert {(await api.http.post(CHAT, json=ASK)).status_code for _ in range(20)} == {400}
    api.handlers[A] = answered
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200


async def test_a_fallback_model_answers_while_all_circuits_of_the_model_are_open(api: Fixture) -> None:
    assert api.router is not None
    api.router.fallbacks = [api.router_to("qwen", BackendConfig(url=B, model="org/qwen"))]
    api.handlers |= {A: unreachable, B: answered}
    await opened(api, A)
    assert (await api.http.post(CHAT, json=ASK)).json() == ANSWER
    assert json.loads(api.requests[-1].content) == {**ASK, "model": "org/qwen"}
    answers = calls_to(api, B)
    assert answers == 2  # also to the call whose failure has opened the circuit
    assert api.counted("fallbacks_total", from_model="llama", to_model="qwen") == answers
    assert await api.used_tokens() == 30 * answers


async def test_a_fallback_model_that_runs_jobs_gets_no_calls(api: Fixture) -> None:
    assert api.router is not None
    jobs = JobConfig(poll_endpoint_template="/status/{id}")
    api.router.fallbacks = [api.router_to("video", BackendConfig(url=B), kind="poll", jobs=jobs)]
    api.handlers |= {A: unreachable, B: answered}
    await opened(api, A)
    assert (await api.http.post(CHAT, json=ASK)).status_code == 503
    assert calls_to(api, B) == 0


@pytest.mark.parametrize("code", [401, 403])
async def test_a_prompt_that_a_backend_refuses_stops_nobody_and_is_not_passed_on(
    api: Fixture, code: int
) -> None:
    def moderates(request: httpx.Request) -> httpx.Response:
        if b"forbidden" in request.content:
            return httpx.Response(code, json={"error": {"message": "sk-of-the-operator may not"}})
        return answered(request)

    assert api.router is not None
    api.register(BackendConfig(url=A), BackendConfig(url=B))
    api.router.fallbacks = [api.router_to("qwen", BackendConfig(url=C))]
    api.handlers |= {A: moderates, B: moderates, C: moderates}
    for _ in range(3):
        refused = await api.http.post(CHAT, json={**ASK, "user": "forbidden"})
        assert (refused.status_code, error_of(refused).type) == (403, "invalid_request_error")
        assert "sk-of-the-operator" not in refused.text
    assert [calls_to(api, A) + calls_to(api, B), calls_to(api, C)] == [3, 0]
    assert not any(each.circuit.is_open for each in api.router.upstreams)
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200


async def test_a_call_that_is_refused_because_of_the_key_is_not_sent_to_fallback_models(api: Fixture) -> None:
    assert api.router is not None
    api.router.fallbacks = [api.router_to("qwen", BackendConfig(url=B))]
    api.handlers |= {A: status(403), B: answered}
    assert (await api.http.post(CHAT, json=ASK)).status_code == 502
    assert calls_to(api, B) == 0
    assert api.router.is_open
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200


async def test_no_tenant_takes_every_trial(api: Fixture) -> None:
    api.handlers[A] = unreachable
    await opened(api, A)
    assert api.router is not None
    api.clock.now += api.router.wait_seconds()
    noisy, quiet = {"X-Tenant": "noisy"}, {"X-Tenant": "quiet"}
    assert (await api.http.post(CHAT, json=ASK, headers=noisy)).status_code == 503
    waits = int((await api.http.post(CHAT, json=ASK, headers=quiet)).headers["retry-after"])
    api.handlers[A] = answered
    api.clock.now += waits
    before = calls_to(api, A)
    refused = await api.http.post(CHAT, json=ASK, headers=noisy)
    assert (refused.status_code, calls_to(api, A)) == (503, before)
    assert int(refused.headers["retry-after"]) > 0
    assert (await api.http.post(CHAT, json=ASK, headers=quiet)).status_code == 200
    assert (await api.http.post(CHAT, json=ASK, headers=noisy)).status_code == 200


@pytest.mark.parametrize("code", [500, 401, 403])
@pytest.mark.parametrize("has_answered", [False, True])
async def test_calls_to_an_endpoint_that_the_model_does_not_have_stop_nobody(
    api: Fixture, code: int, has_answered: bool
) -> None:
    def chats(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/embeddings":
            return status(code)(request)
        return httpx.Response(404) if request.url.path not in (CHAT, "/health") else answered(request)

    api.handlers[A] = chats
    if has_answered:
        assert (await api.http.post(CHAT, json=ASK)).status_code == 200
        api.clock.now += 1
    for _ in range(20):
        assert (await api.http.post("/v1/embeddings", json={**ASK, "input": "x"})).status_code in (500, 403)
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200


@pytest.mark.parametrize("code", [500, 401])
async def test_a_backend_that_answers_only_health_checks_is_at_fault(api: Fixture, code: int) -> None:
    def is_healthy(request: httpx.Request) -> httpx.Response:
        if request.url.path == CHAT:
            return httpx.Response(code)
        return httpx.Response(200 if request.url.path == "/health" else 404)

    api.handlers[A] = is_healthy
    await opened(api, A)


@pytest.mark.parametrize("first", [b": ping\n\n", b'data: {"error": {"message": "no"}}\n\n'])
async def test_a_stream_that_begins_without_an_answer_does_not_close_the_circuit(
    api: Fixture, first: bytes
) -> None:
    api.handlers[A] = unreachable
    await opened(api, A)
    api.clock.now += 2
    begun = Pieces(first, hangs=True)
    api.handlers[A] = lambda _: httpx.Response(200, headers=EVENTS, stream=begun)
    streaming = asyncio.create_task(api.http.post(CHAT, json=STREAM))
    await begun.is_hanging.wait()
    assert api.router is not None
    assert api.router.is_open
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)


async def test_probes_of_interactive_calls_look_like_such_calls(api: Fixture) -> None:
    config = {"url": A, "priority": 10, "headers": {"X-Team": "red"}, "batch_headers": {"X-Lane": "batch"}}
    api.register(BackendConfig.model_validate({**config, "send_dispatch_header": True}))
    api.handlers[A] = status(500)
    await opened(api, A)
    probes = [each for each in api.requests if is_probe(each)]
    assert any(each.method == "POST" for each in probes)
    for probe in probes:
        assert probe.headers["x-team"] == "red"
        assert "x-lane" not in probe.headers
        assert "x-source" not in probe.headers
        assert b"priority" not in probe.content


@pytest.mark.parametrize("body", [ASK, STREAM])
@pytest.mark.parametrize("stops", [False, True])
async def test_a_client_gets_its_error_before_a_probe_of_the_backend_ends(
    api: Fixture, body: dict[str, object], stops: bool
) -> None:
    probed, ends = asyncio.Event(), asyncio.Event()

    async def hangs_when_probed(request: httpx.Request) -> httpx.Response:
        if is_probe(request):
            probed.set()
            await ends.wait()
            return httpx.Response(500)
        return cut(request) if body is STREAM else httpx.Response(500)

    assert api.router is not None
    upstream = api.router.upstreams[0]
    transport = HttpxTransport(httpx.MockTransport(hangs_when_probed), connect_seconds=1)
    upstream.backend.client.set_transport(transport)
    for _ in range(upstream.circuit.failures_to_open):
        async with asyncio.timeout(10):
            answer = await api.http.post(CHAT, json=body)
        assert b"error" in answer.content
    await probed.wait()
    assert upstream.outstanding == 1
    if stops:
        await api.calls.close()
    ends.set()
    await api.calls.reports.ended()
    await asyncio.sleep(0)  # the callbacks of the report
    assert upstream.outstanding == 0
    if not stops:
        await opened(api, A, body=body)
