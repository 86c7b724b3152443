"""POST /tasks/callback/{token}: the first call counts, and only of those who were given the URL."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from batchwright.rules.callbacks import PATH, Callback, token_of
from tests.fakes.api import House, error_of, open_house

SECRET = "s" * 32
DIGITS = "ab" * 16


def token(*, seconds: float = 600, secret: str = SECRET, ordinal: int = 0) -> str:
    expires_at = int((datetime.now(UTC) + timedelta(seconds=seconds)).timestamp())
    return token_of(Callback(f"batch_req_{DIGITS}", ordinal, expires_at), secret)


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    settings = {"callback_url": "http://api", "callback_secret": SECRET, "max_response_bytes": 2048}
    async with open_house(auth="api_key", **settings) as house:
        yield house


async def call(house: House, token: str, body: bytes = b'{"status":"done"}') -> httpx.Response:
    return await house.http.post(PATH + token, content=body)


async def kept(house: House) -> list[bytes | None]:
    return [told.body for told in await house.database.callbacks.told([f"{DIGITS}.0", f"{DIGITS}.1"])]


async def test_the_first_call_is_kept_and_a_repeat_changes_nothing(house: House) -> None:
    one = token()
    first, second = await call(house, one, b'{"a":1}'), await call(house, one, b'{"a":2}')
    assert (first.status_code, first.json()) == (200, {"object": "callback", "accepted": True})
    assert (second.status_code, second.json()) == (200, {"object": "callback", "accepted": False})
    assert await kept(house) == [b'{"a":1}']


async def test_calls_are_counted_by_what_came_of_them(house: House) -> None:
    def counted() -> list[float]:
        results = ("accepted", "repeated", "expired", "token", "body")
        return [house.metrics.callbacks.labels(result).value for result in results]

    before, one = counted(), token()
    for each in (one, one, token(seconds=-1), "nonsense"):
        await call(house, each)
    assert [after - was for after, was in zip(counted(), before, strict=True)] == [1, 1, 1, 1, 0]


async def test_one_that_was_used_up_is_still_a_repeat(house: House) -> None:
    one = token()
    await call(house, one)
    await house.database.callbacks.empty([f"{DIGITS}.0"])
    assert (await call(house, one)).json()["accepted"] is False
    assert await kept(house) == []


async def test_a_wrong_token_is_refused_and_nothing_is_kept(house: House) -> None:
    for wrong in ("x", token(secret="t" * 32), token()[:-1], f"{DIGITS}.0.1.{'A' * 43}"):
        answer = await call(house, wrong)
        assert (answer.status_code, error_of(answer).code) == (401, "invalid_callback_token")
    assert await kept(house) == []


async def test_a_call_after_its_time_is_refused(house: House) -> None:
    answer = await call(house, token(seconds=-1))
    assert (answer.status_code, error_of(answer).code) == (410, "callback_expired")
    assert await kept(house) == []


async def test_what_is_not_json_is_refused_and_may_be_sent_again(house: House) -> None:
    one = token()
    answer = await call(house, one, b"<html>")
    assert (answer.status_code, error_of(answer).code) == (400, None)
    assert (await call(house, one)).json()["accepted"] is True


async def test_what_is_too_large_is_refused_and_its_line_will_know(house: House) -> None:
    answer = await call(house, token(), b'"%s"' % (b"x" * 3000))
    assert answer.status_code == 413
    [told] = await house.database.callbacks.told([f"{DIGITS}.0"])
    assert told.body is None
    assert told.size > 2048


async def test_without_a_secret_no_token_is_right() -> None:
    async with open_house() as house:
        assert (await call(house, token(secret=""))).status_code == 401


async def test_a_model_that_calls_back_needs_an_address_to_call() -> None:
    body = {"backends": [{"url": "http://x"}], "kind": "callback"}
    async with open_house() as house:
        answer = await house.http.put("/admin/models/m", json=body)
        assert (answer.status_code, error_of(answer).param) == (400, "kind")
        assert "BATCHWRIGHT_CALLBACK_URL" in error_of(answer).message


async def test_the_kind_of_a_model_and_its_jobs_are_shown() -> None:
    jobs = {"poll_endpoint_template": "/status/{id}", "poll_interval": "3s"}
    body = {"backends": [{"url": "http://x"}], "kind": "poll", "jobs": jobs}
    async with open_house() as house:
        [model] = (await house.http.put("/admin/models/m", json=body)).json()["data"]
        assert (model["kind"], model["jobs"]["poll_interval"]) == ("poll", 3.0)
        answer = await house.http.put("/admin/models/m", json={**body, "jobs": {}})
        assert answer.status_code == 400
        assert "jobs.poll_endpoint_template" in error_of(answer).message
