"""POST /tasks/callback/{token}: only the first call with a valid token counts."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from batchwright.api.middleware import header_size_and_body_speed
from batchwright.rules.backends.callback_tokens import CALLBACK_PATH, CallbackToken, sign_token
from tests.fakes.api import ApiFixture, error_of, open_api

SECRET = "s" * 32
DIGITS = "ab" * 16
LARGE = b'"%s"' % (b"x" * 2000)  # nearly the most that `api` accepts


def token(*, seconds: float = 600, secret: str = SECRET, ordinal: int = 0) -> str:
    expires_at = int((datetime.now(UTC) + timedelta(seconds=seconds)).timestamp())
    return sign_token(CallbackToken(f"batch_req_{DIGITS}", ordinal, expires_at), secret)


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    settings = {"callback_url": "http://api", "callback_secret": SECRET, "max_response_bytes": 2048}
    async with open_api(auth="api_key", **settings) as api:
        yield api


async def call(api: ApiFixture, token: str, body: bytes = b'{"status":"done"}') -> httpx.Response:
    return await api.http.post(CALLBACK_PATH + token, content=body)


@asynccontextmanager
async def open_calls(api: ApiFixture, count: int) -> AsyncGenerator[None]:
    """Send callbacks whose bodies are complete only at the end of the block. Then all are accepted."""

    async def body(begun: asyncio.Event) -> AsyncIterator[bytes]:
        yield LARGE
        begun.set()
        await rest.wait()
        yield b" "

    rest, begun = asyncio.Event(), [asyncio.Event() for _ in range(count)]
    urls = [CALLBACK_PATH + token(ordinal=ordinal) for ordinal in range(count)]
    calls = [
        asyncio.create_task(api.http.post(url, content=body(event)))
        for url, event in zip(urls, begun, strict=True)
    ]
    for sent, event in zip(calls, begun, strict=True):
        sent.add_done_callback(lambda _, event=event: event.set())  # so that a refused call fails the test
    await asyncio.gather(*(event.wait() for event in begun))
    try:
        yield
    finally:
        rest.set()
    assert [answer.json()["accepted"] for answer in await asyncio.gather(*calls)] == [True] * count


async def stored_bodies(api: ApiFixture) -> list[bytes | None]:
    received = await api.database.callbacks.get([f"{DIGITS}.0", f"{DIGITS}.1"], 4096)
    return [callback.body for callback in received.callbacks]


async def test_the_first_callback_is_stored_and_a_repeat_changes_nothing(api: ApiFixture) -> None:
    one = token()
    first, second = await call(api, one, b'{"a":1}'), await call(api, one, b'{"a":2}')
    assert (first.status_code, first.json()) == (200, {"object": "callback", "accepted": True})
    assert (second.status_code, second.json()) == (200, {"object": "callback", "accepted": False})
    assert await stored_bodies(api) == [b'{"a":1}']


async def test_callbacks_are_counted_by_outcome(api: ApiFixture) -> None:
    def counted() -> list[float]:
        results = ("accepted", "repeated", "expired", "token", "body")
        return [api.metrics.callbacks.labels(result).value for result in results]

    before, one = counted(), token()
    for each in (one, one, token(seconds=-1), "nonsense"):
        await call(api, each)
    assert [after - was for after, was in zip(counted(), before, strict=True)] == [1, 1, 1, 1, 0]


async def test_a_repeat_of_a_consumed_callback_is_still_recognized(api: ApiFixture) -> None:
    one = token()
    await call(api, one)
    await api.database.callbacks.clear_bodies([f"{DIGITS}.0"])
    assert (await call(api, one)).json()["accepted"] is False
    assert await stored_bodies(api) == []


async def test_the_body_of_a_repeated_callback_is_not_read(api: ApiFixture) -> None:
    async def body() -> AsyncIterator[bytes]:
        read.append(len(read))
        yield b"{}"

    read: list[int] = []
    one = token()
    for accepted in (True, False):
        answer = await api.http.post(CALLBACK_PATH + one, content=body())
        assert answer.json()["accepted"] is accepted
    assert read == [0]


async def test_callbacks_that_arrive_together_have_a_limit_of_bytes(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.held_bytes, "limit_per_tenant", 2 * len(LARGE) + 1000)
    refusals = api.metrics.callbacks.labels("no_room")
    before = refusals.value
    async with open_calls(api, 2):
        refused = await call(api, token(ordinal=3), LARGE)
        assert (refused.status_code, error_of(refused).code) == (429, "resource_unavailable")
        assert refusals.value - before == 1
    assert (await call(api, token(ordinal=3), LARGE)).json()["accepted"] is True


async def test_a_callback_whose_body_stalls_is_ended_and_frees_its_bytes(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stalled_body() -> AsyncIterator[bytes]:
        yield LARGE
        await asyncio.Event().wait()

    monkeypatch.setattr(api.held_bytes, "limit_per_tenant", 2 * len(LARGE))
    with monkeypatch.context() as patch:
        patch.setattr(header_size_and_body_speed, "BODY_SECONDS", 0.05)
        stalled = [api.http.post(CALLBACK_PATH + token(ordinal=n), content=stalled_body()) for n in (1, 2)]
        for answer in await asyncio.gather(*stalled):
            assert (answer.status_code, answer.headers["connection"]) == (408, "close")
    async with open_calls(api, 1):
        assert (await call(api, token(ordinal=2), LARGE)).json()["accepted"] is True


async def test_a_wrong_token_is_refused_and_nothing_is_stored(api: ApiFixture) -> None:
    for wrong in ("x", token(secret="t" * 32), token()[:-1], f"{DIGITS}.0.1.{'A' * 43}"):
        answer = await call(api, wrong)
        assert (answer.status_code, error_of(answer).code) == (401, "invalid_callback_token")
    assert await stored_bodies(api) == []


async def test_a_late_callback_is_refused(api: ApiFixture) -> None:
    answer = await call(api, token(seconds=-1))
    assert (answer.status_code, error_of(answer).code) == (410, "callback_expired")
    assert await stored_bodies(api) == []


async def test_a_callback_that_expires_while_its_body_arrives_is_refused_as_a_late_one(
    api: ApiFixture,
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"status":'
        api.database.rows.clock = lambda: datetime.now(UTC) + timedelta(seconds=600)
        yield b'"done"}'

    expired = api.metrics.callbacks.labels("expired")
    before = expired.value
    answer = await api.http.post(CALLBACK_PATH + token(seconds=600), content=body())
    assert (answer.status_code, error_of(answer).code) == (410, "callback_expired")
    assert expired.value - before == 1
    assert await stored_bodies(api) == []


async def test_a_body_that_is_not_json_is_refused_and_can_be_sent_again(api: ApiFixture) -> None:
    one = token()
    answer = await call(api, one, b"<html>")
    assert (answer.status_code, error_of(answer).code) == (400, None)
    assert (await call(api, one)).json()["accepted"] is True


async def test_a_callback_that_is_too_large_is_refused_and_recorded_for_its_line(api: ApiFixture) -> None:
    answer = await call(api, token(), b'"%s"' % (b"x" * 3000))
    assert answer.status_code == 413
    [callback] = (await api.database.callbacks.get([f"{DIGITS}.0"], 4096)).callbacks
    assert callback.body is None
    assert callback.size > 2048


async def test_without_a_secret_every_token_is_refused() -> None:
    async with open_api() as api:
        assert (await call(api, token(secret=""))).status_code == 401


async def test_a_model_with_callbacks_needs_a_callback_address() -> None:
    body = {"backends": [{"url": "http://x"}], "kind": "callback"}
    async with open_api() as api:
        answer = await api.http.put("/admin/models/m", json=body)
        assert (answer.status_code, error_of(answer).param) == (400, "kind")
        assert "BATCHWRIGHT_CALLBACK_URL" in error_of(answer).message


async def test_the_kind_of_a_model_and_its_jobs_are_shown() -> None:
    jobs = {"poll_endpoint_template": "/status/{id}", "poll_interval": "3s"}
    body = {"backends": [{"url": "http://x"}], "kind": "poll", "jobs": jobs}
    async with open_api() as api:
        [model] = (await api.http.put("/admin/models/m", json=body)).json()["data"]
        assert (model["kind"], model["jobs"]["poll_interval"]) == ("poll", 3.0)
        answer = await api.http.put("/admin/models/m", json={**body, "jobs": {}})
        assert answer.status_code == 400
        assert "jobs.poll_endpoint_template" in error_of(answer).message


@pytest.mark.parametrize(
    "path",
    [
        "/tasks%252Fcallback%252F{token}",
        "/tasks%25252Fcallback/{token}",
        "/v1/tasks/callback/{token}",
        "/Tasks/Callback/{token}",
        "/%25{token}",
        "/{encoded}",
    ],
)
async def test_neither_logs_nor_errors_show_the_token_of_a_wrong_path(
    api: ApiFixture, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    secret = token()
    encoded = "".join(f"%25{ord(character):02x}" for character in secret)
    with caplog.at_level(logging.INFO, "batchwright.api.middleware"):
        answer = await api.http.post(path.format(token=secret, encoded=encoded), content=b"{}")
    assert answer.status_code >= 400
    [entry] = [vars(record) for record in caplog.records if "path" in vars(record)]
    assert entry["path"] == "/tasks/callback/***"
    assert secret[-43:] not in answer.text


async def test_an_error_about_the_method_does_not_show_the_token_of_a_callback(api: ApiFixture) -> None:
    secret = token()
    answer = await api.http.get(CALLBACK_PATH + secret)
    assert answer.status_code == 405
    assert secret[-43:] not in answer.text


@pytest.mark.parametrize("prefix", ["/tasks/callback/", "/tasks%2Fcallback/", "/%74asks/callback%2f"])
async def test_no_log_shows_the_token_of_a_callback(
    api: ApiFixture, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    async def break_down(*_: object) -> bool:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(api.database.callbacks, "accept", break_down)
    secret = token()
    with caplog.at_level(logging.INFO, "batchwright.api.middleware"):
        assert (await api.http.post(f"{prefix}{secret}", content=b"{}")).status_code == 500
    entries = [vars(record) for record in caplog.records if "path" in vars(record)]
    assert [entry["message"] for entry in entries] == ["request", "a request failed"]
    assert {entry["path"] for entry in entries} == {"/tasks/callback/***"}
