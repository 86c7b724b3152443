"""What every route bounds and every answer carries: headers, silence, origins, the log of requests."""

import asyncio
import hashlib
import logging
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from tests.fakes.api import LINE, House, error_of, open_house

PAGE = "https://app.example.com"
FORM = {"Content-Type": "multipart/form-data; boundary=cut"}


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house() as house:
        yield house


@pytest.mark.parametrize("path", ["/healthz", "/v1/files", "/v1/files/x", "/v1/x", "/metrics"])
async def test_every_answer_keeps_browsers_from_guessing(house: House, path: str) -> None:
    headers = (await house.http.get(path)).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["cache-control"] == "no-store"


async def test_the_page_that_shows_the_description_may_have_its_style_and_nothing_else(house: House) -> None:
    page = await house.http.get("/docs")
    [style] = re.findall("<style>(.*)</style>", page.text, re.DOTALL)
    allowed = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert page.headers["content-security-policy"] == (
        f"default-src 'none'; style-src 'sha256-{allowed}'; frame-ancestors 'none'"
    )


@pytest.mark.parametrize("headers", [{"X-Long": "x" * 40_000}, {f"X-{i}": "x" for i in range(200)}])
async def test_too_many_or_too_large_headers_are_refused(house: House, headers: dict[str, str]) -> None:
    answer = await house.http.get("/v1/files", headers=headers)
    assert (answer.status_code, error_of(answer).type) == (431, "invalid_request_error")
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/uploads"])
async def test_a_client_that_falls_silent_in_its_body_is_let_go(path: str) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"--cut\r\n"
        await asyncio.Event().wait()

    async with open_house(api_silence_seconds=0.05) as house:
        answer = await house.http.post(path, content=body(), headers=FORM)
    assert (answer.status_code, error_of(answer).type) == (408, "invalid_request_error")
    assert answer.headers["connection"] == "close"
    assert house.storage.objects == {}


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/uploads"])
async def test_a_body_that_trickles_is_refused_as_silence_is(path: str) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'--cut\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + b"x" * 1_000  # it came fast
        while True:
            await asyncio.sleep(0)
            yield b"x"

    async with open_house(api_silence_seconds=0.1, api_body_bytes_per_second=10**9) as house:
        answer = await house.http.post(path, content=body(), headers=FORM)
    assert (answer.status_code, answer.headers["connection"]) == (408, "close")
    assert error_of(answer).message.startswith(("The request's body comes too slowly", "Nothing of the"))
    assert house.storage.objects == {}


async def test_a_body_may_come_at_any_speed_where_that_is_set() -> None:
    async def body() -> AsyncIterator[bytes]:
        for byte in b'{"input_file_id": 1}':
            await asyncio.sleep(0)
            yield bytes([byte])

    async with open_house(api_body_bytes_per_second=0) as house:
        answer = await house.http.post("/v1/batches", content=body())
    assert answer.status_code == 400


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/uploads"])
async def test_a_json_body_is_bounded_also_without_a_length(house: House, path: str) -> None:
    taken: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        for number in range(100):
            taken.append(number)
            yield b" " * 256 * 1024

    answer = await house.http.post(path, content=body())
    assert (answer.status_code, len(taken) < 10) == (413, True)


async def test_no_page_may_call_the_api_by_default(house: House) -> None:
    answer = await house.http.get("/v1/files", headers={"Origin": PAGE})
    assert "access-control-allow-origin" not in answer.headers
    preflight = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    assert (await house.http.options("/v1/files", headers=preflight)).status_code == 405


async def test_pages_of_the_configured_origins_may() -> None:
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "Idempotency-Key"}
    async with open_house(api_cors_origins=[PAGE]) as house:
        ours = await house.http.options("/v1/files", headers={"Origin": PAGE, **preflight})
        read = await house.http.get("/v1/files", headers={"Origin": PAGE})
        other = await house.http.options("/v1/files", headers={"Origin": "https://evil.example", **preflight})
    assert (ours.status_code, ours.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "idempotency-key" in ours.headers["access-control-allow-headers"].lower()
    assert read.headers["access-control-allow-origin"] == PAGE
    assert "X-Request-Id" in read.headers["access-control-expose-headers"]
    assert (other.status_code, error_of(other).type) == (400, "invalid_request_error")
    assert "access-control-allow-origin" not in other.headers


async def test_a_request_is_one_entry_of_the_log(house: House, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "api.request_log"):
        await house.http.get("/v1/files/a%0Ab?secret=1")
        await house.http.get("/healthz")
        await house.upload(LINE)
    entries = [vars(record) for record in caplog.records if record.name == "api.request_log"]
    asked, probe, sent = entries
    assert {entry["message"] for entry in entries} == {"request"}
    assert (asked["method"], asked["path"], asked["status"]) == ("GET", "/v1/files/a%0Ab", 404)
    assert asked["seconds"] >= 0
    assert (asked["levelname"], probe["levelname"]) == ("INFO", "DEBUG")
    assert sent["received_bytes"] > len(LINE)
    assert sent["sent_bytes"] > 0


async def test_a_request_that_fails_is_logged_as_such(
    house: House, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_down(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(house.served, "served", break_down)
    with caplog.at_level(logging.INFO, "api.request_log"):
        answer = await house.http.get("/v1/models")
    [entry] = [vars(record) for record in caplog.records if record.name == "api.request_log"]
    assert (answer.status_code, entry["status"]) == (500, 500)
    assert "mistake" not in answer.text
