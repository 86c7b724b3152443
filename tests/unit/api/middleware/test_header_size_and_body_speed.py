"""Limits of every request: the size of its headers, and the size and speed of its body."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from batchwright.api.middleware import header_size_and_body_speed
from tests.fakes.api import ApiFixture, error_of, open_api

FORM = {"Content-Type": "multipart/form-data; boundary=cut"}


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


@pytest.mark.parametrize("headers", [{"X-Long": "x" * 40_000}, {f"X-{i}": "x" for i in range(200)}])
async def test_too_many_or_too_large_headers_are_refused(api: ApiFixture, headers: dict[str, str]) -> None:
    answer = await api.http.get("/v1/files", headers=headers)
    assert (answer.status_code, error_of(answer).type) == (431, "invalid_request_error")
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/uploads"])
async def test_a_client_that_stops_sending_its_body_is_disconnected(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"--cut\r\n"
        await asyncio.Event().wait()

    monkeypatch.setattr(header_size_and_body_speed, "BODY_SECONDS", 0.05)
    async with open_api() as api:
        answer = await api.http.post(path, content=body(), headers=FORM)
    assert (answer.status_code, error_of(answer).type) == (408, "invalid_request_error")
    assert answer.headers["connection"] == "close"
    assert api.storage.objects == {}


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/uploads"])
async def test_a_body_that_trickles_is_refused_like_a_silent_one(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'--cut\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + b"x" * 1_000  # arrived fast
        while True:
            await asyncio.sleep(0)
            yield b"x"

    monkeypatch.setattr(header_size_and_body_speed, "BODY_SECONDS", 0.1)
    monkeypatch.setattr(header_size_and_body_speed, "MIN_BODY_BYTES_PER_SECOND", 10**9)
    async with open_api() as api:
        answer = await api.http.post(path, content=body(), headers=FORM)
    assert (answer.status_code, answer.headers["connection"]) == (408, "close")
    assert error_of(answer).message.startswith(("The request's body arrives too slowly", "No part of the"))
    assert api.storage.objects == {}


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/uploads"])
async def test_a_json_body_without_a_length_is_limited_too(api: ApiFixture, path: str) -> None:
    taken: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        for number in range(100):
            taken.append(number)
            yield b" " * 256 * 1024

    answer = await api.http.post(path, content=body())
    assert (answer.status_code, len(taken) < 10) == (413, True)
