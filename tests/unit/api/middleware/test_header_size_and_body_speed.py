"""Limits and headers of every route: header size, body speed, security headers, CORS, the access log."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from batchwright.api.middleware import header_size_and_body_speed
from tests.fakes.api import LINE, ApiFixture, error_of, open_api

PAGE = "https://app.example.com"
FORM = {"Content-Type": "multipart/form-data; boundary=cut"}


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


@pytest.mark.parametrize("path", ["/healthz", "/v1/files", "/v1/files/x", "/v1/x", "/metrics"])
async def test_every_response_forbids_content_sniffing(api: ApiFixture, path: str) -> None:
    headers = (await api.http.get(path)).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["cache-control"] == "no-store"


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


async def test_no_page_may_call_the_api_by_default(api: ApiFixture) -> None:
    answer = await api.http.get("/v1/files", headers={"Origin": PAGE})
    assert "access-control-allow-origin" not in answer.headers
    preflight = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    assert (await api.http.options("/v1/files", headers=preflight)).status_code == 405


async def test_pages_of_configured_origins_may_call_the_api() -> None:
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "Idempotency-Key"}
    async with open_api(api_cors_origins=[PAGE]) as api:
        ours = await api.http.options("/v1/files", headers={"Origin": PAGE, **preflight})
        read = await api.http.get("/v1/files", headers={"Origin": PAGE})
        other = await api.http.options("/v1/files", headers={"Origin": "https://evil.example", **preflight})
    assert (ours.status_code, ours.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "idempotency-key" in ours.headers["access-control-allow-headers"].lower()
    assert read.headers["access-control-allow-origin"] == PAGE
    assert "X-Request-Id" in read.headers["access-control-expose-headers"]
    assert (other.status_code, error_of(other).type) == (400, "invalid_request_error")
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    "headers",
    [
        # of the official JavaScript clients in a browser
        "authorization,content-type,x-stainless-lang,x-stainless-os,x-stainless-retry-count,x-stainless-timeout",
        "anthropic-dangerous-direct-browser-access,anthropic-version,x-api-key,x-stainless-arch",
        "x-project",  # a header that the operator passes on to backends
    ],
)
async def test_pages_of_configured_origins_may_send_each_header_of_the_official_clients(headers: str) -> None:
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": headers}
    async with open_api(api_cors_origins=[PAGE], pass_headers="X-Project") as api:
        answer = await api.http.options("/v1/batches", headers={"Origin": PAGE, **preflight})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-headers"] == headers


async def test_a_request_is_one_entry_of_the_log(api: ApiFixture, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "batchwright.api.middleware.access_log"):
        await api.http.get("/v1/files/a%0Ab?secret=1")
        await api.http.get("/healthz")
        await api.upload(LINE)
    entries = [
        vars(record) for record in caplog.records if record.name == "batchwright.api.middleware.access_log"
    ]
    first, probe, sent = entries
    assert {entry["message"] for entry in entries} == {"request"}
    assert (first["method"], first["path"], first["status"]) == ("GET", "/v1/files/a%0Ab", 404)
    assert first["seconds"] >= 0
    assert (first["levelname"], probe["levelname"]) == ("INFO", "DEBUG")
    assert sent["received_bytes"] > len(LINE)
    assert sent["sent_bytes"] > 0


async def test_a_failed_request_is_logged_as_an_error(
    api: ApiFixture, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_down(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(api.served, "served", break_down)
    with caplog.at_level(logging.INFO, "batchwright.api.middleware.access_log"):
        answer = await api.http.get("/v1/models")
    [entry] = [
        vars(record) for record in caplog.records if record.name == "batchwright.api.middleware.access_log"
    ]
    assert (answer.status_code, entry["status"]) == (500, 500)
    assert "mistake" not in answer.text
