"""Interactive calls that a backend refuses with 401 or 403: because of the API key, or of the request."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

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
    A,
    B,
    Fixture,
    answered,
    chunk,
)
from tests.unit.api.routes.calls.test_interactive_circuits import STREAM, C, calls_to, is_probe, status

FORBIDDEN = {**ASK, "user": "forbidden"}


def moderates(code: int) -> Callable[[httpx.Request], httpx.Response]:
    def moderated(request: httpx.Request) -> httpx.Response:
        if b"forbidden" in request.content:
            return httpx.Response(code, json={"error": {"message": "sk-of-the-operator may not"}})
        return answered(request)

    return moderated


def answer_with(api: Fixture, handle: Callable[[httpx.Request], Awaitable[httpx.Response]]) -> None:
    """Let all backends answer with the coroutine `handle`."""

    async def recorded(request: httpx.Request) -> httpx.Response:
        api.requests.append(request)
        return await handle(request)

    assert api.router is not None
    transport = HttpxTransport(httpx.MockTransport(recorded), connect_seconds=1)
    for upstream in api.router.upstreams:
        upstream.backend.client.set_transport(transport)


@pytest.mark.parametrize("code", [401, 403])
async def test_a_prompt_that_all_backends_refuse_stops_nobody_and_goes_to_no_fallback_model(
    api: Fixture, code: int
) -> None:
    assert api.router is not None
    api.register(BackendConfig(url=A), BackendConfig(url=B))
    api.router.fallbacks = [api.router_to("qwen", BackendConfig(url=C))]
    api.handlers |= dict.fromkeys((A, B, C), moderates(code))
    for url in (A, B):  # both have accepted the API key
        while not calls_to(api, url):
            await api.http.post(CHAT, json=ASK)
    api.requests.clear()
    for _ in range(3):
        api.clock.now += 1
        refused = await api.http.post(CHAT, json=FORBIDDEN)
        assert (refused.status_code, error_of(refused).type) == (403, "invalid_request_error")
        assert "sk-of-the-operator" not in refused.text
        await api.calls.reports.ended()
    assert [calls_to(api, A) + calls_to(api, B), calls_to(api, C)] == [6, 0]
    assert not any(each.circuit.is_open for each in api.router.upstreams)
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200


@pytest.mark.parametrize("code", [401, 403])
async def test_the_first_call_after_a_key_was_revoked_is_answered_by_another_backend(
    api: Fixture, code: int
) -> None:
    api.register(BackendConfig(url=A), BackendConfig(url=B))
    api.handlers |= {A: answered, B: answered}
    while not calls_to(api, A):  # the backend has accepted the API key
        assert (await api.http.post(CHAT, json=ASK)).status_code == 200
    api.handlers[A] = status(code)
    before = calls_to(api, A)
    while calls_to(api, A) == before:
        assert (await api.http.post(CHAT, json=ASK)).status_code == 200
    await api.calls.reports.ended()


async def test_a_call_that_is_refused_because_of_the_key_is_not_sent_to_fallback_models(api: Fixture) -> None:
    assert api.router is not None
    api.router.fallbacks = [api.router_to("qwen", BackendConfig(url=B))]
    api.handlers |= {A: status(403), B: answered}
    assert (await api.http.post(CHAT, json=ASK)).status_code == 502
    assert calls_to(api, B) == 0
    await api.calls.reports.ended()
    assert api.router.all_own_circuits_open
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200


@pytest.mark.parametrize("code", [401, 403])
@pytest.mark.parametrize(
    ("backends", "is_known", "shown"),
    [
        ((A,), True, 403),  # the backend has accepted the key, so the request is at fault
        ((A,), False, 502),
        ((A, B), False, 200),  # from the other backend
    ],
)
async def test_a_refused_call_does_not_wait_for_the_probe(
    api: Fixture, code: int, backends: tuple[str, ...], is_known: bool, shown: int
) -> None:
    api.register(*(BackendConfig(url=url) for url in backends))
    ends = asyncio.Event()

    async def hangs_when_probed(request: httpx.Request) -> httpx.Response:
        if is_probe(request):
            await ends.wait()
        refuses = request.url.host == "a" and b"forbidden" in request.content
        return httpx.Response(code) if refuses else httpx.Response(200, json=ANSWER)

    answer_with(api, hangs_when_probed)
    if is_known:
        assert (await api.http.post(CHAT, json=ASK)).status_code == 200
        api.clock.now += 1
    shown_last = 0
    while not calls_to(api, A) - is_known:
        async with asyncio.timeout(60):
            shown_last = (await api.http.post(CHAT, json=FORBIDDEN)).status_code
    assert shown_last == shown
    ends.set()
    await api.calls.reports.ended()


async def test_the_end_of_an_old_stream_does_not_show_that_the_key_is_still_accepted(api: Fixture) -> None:
    """The stream began before the backend revoked the key. So a refusal after its end is not the fault of the
    call.
    """
    begun, ends, probe_ends, is_revoked = (asyncio.Event() for _ in range(4))

    async def backend(request: httpx.Request) -> httpx.Response:
        if is_probe(request):
            await probe_ends.wait()
        if is_revoked.is_set():
            return httpx.Response(401)
        begun.set()
        return httpx.Response(200, headers=EVENTS, stream=OldStream(ends))

    answer_with(api, backend)
    streaming = asyncio.create_task(api.http.post(CHAT, json=STREAM))
    await begun.wait()
    is_revoked.set()
    api.clock.now += 1
    assert (await api.http.post(CHAT, json=ASK)).status_code == 502
    ends.set()
    assert (await streaming).status_code == 200
    assert (await api.http.post(CHAT, json=ASK)).status_code == 502
    probe_ends.set()
    await api.calls.reports.ended()


class OldStream(httpx.AsyncByteStream):
    """A stream of events that ends when the event `ends` is set."""

    def __init__(self, ends: asyncio.Event) -> None:
        self._ends = ends

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield chunk("He")
        await self._ends.wait()
        yield chunk("llo")


@pytest.mark.parametrize("code", [401, 403])
async def test_a_call_that_is_refused_because_of_a_rotated_key_is_sent_again_with_the_new_key(
    api: Fixture, tmp_path: Path, code: int
) -> None:
    def needs_new_key(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["authorization"])
        return answered(request) if keys[-1] == "Bearer sk-new" else httpx.Response(code)

    keys, file = list[str](), tmp_path / "key"
    file.write_text("sk-old")
    api.register(BackendConfig(url=A, api_key_file=str(file)))
    api.handlers[A] = needs_new_key
    file.write_text("sk-new")
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200
    assert keys[0] == "Bearer sk-old"
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200


async def test_a_call_that_is_refused_with_the_current_key_is_not_sent_again(
    api: Fixture, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("sk-old")
    api.register(BackendConfig(url=A, api_key_file=str(file)))
    api.handlers[A] = status(401)
    assert (await api.http.post(CHAT, json=ASK)).status_code == 502
    assert sum(not is_probe(request) for request in api.requests) == 1
    await api.calls.reports.ended()
