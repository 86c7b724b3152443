"""Circuit breakers of backends that interactive calls use."""

import asyncio
import math
from collections.abc import Callable

import httpx
import pytest

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
    """Send calls until the circuit breakers of the backends are open."""
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
    assert not api.router.all_own_circuits_open
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


async def check_that_tenants_take_turns(api: Fixture) -> None:
    """Check that calls of the tenants `noisy` and `quiet` are sent alternately to the failed backend A."""
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


async def test_no_tenant_takes_every_trial(api: Fixture) -> None:
    api.handlers[A] = unreachable
    await opened(api, A)
    assert api.router is not None
    api.clock.now += api.router.wait_seconds()
    await check_that_tenants_take_turns(api)


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
        refused = await api.http.post("/v1/embeddings", json={**ASK, "input": "x"})
        assert refused.status_code in (500, 502, 403)
        await api.calls.reports.ended()
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
    assert api.router.all_own_circuits_open
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


@pytest.mark.parametrize("code", [429, 503])
async def test_a_circuit_that_refusals_have_opened_closes_at_the_next_answer(api: Fixture, code: int) -> None:
    api.handlers[A] = lambda _: httpx.Response(code, headers={"Retry-After": "20"})
    await opened(api, A)
    assert api.router is not None
    wait = api.router.wait_seconds()
    assert wait == 20
    api.handlers[A] = answered
    assert (await api.http.post(CHAT, json=ASK)).status_code == 503
    api.clock.now += wait
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200
    assert not api.router.all_own_circuits_open
    assert not any(map(is_probe, api.requests))


async def test_the_circuit_of_a_backend_that_refuses_again_stays_open_for_as_long_as_it_asks(
    api: Fixture,
) -> None:
    api.handlers[A] = status(429)
    await opened(api, A)
    assert api.router is not None
    api.clock.now += api.router.wait_seconds()
    api.handlers[A] = lambda _: httpx.Response(429, headers={"Retry-After": "1e9"})
    assert (await api.http.post(CHAT, json=ASK)).status_code == 429
    assert api.router.wait_seconds() == 60
