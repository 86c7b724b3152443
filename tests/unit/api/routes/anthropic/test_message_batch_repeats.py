"""Bodies of repeated requests that create a message batch.

A process reads only a few of these bodies at the same time, and none beyond its limits.
"""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from batchwright.api.routes.anthropic.message_batches import MAX_REPEATS
from tests.clocks import skip_time
from tests.fakes.api import ApiFixture, open_api
from tests.unit.api.routes.anthropic.message_batch_requests import PARAMS, PATH, VERSION, error_of

BODY = json.dumps({"requests": [{"custom_id": "a", "params": PARAMS}]}).encode()
TWO = json.dumps({"requests": [{"custom_id": id, "params": PARAMS} for id in "ab"]}).encode()
KEYS = [str(number) for number in range(MAX_REPEATS)]


class SlowBodies:
    """Request bodies that send nothing until `may_end` is set.

    `reading` has the idempotency key of each body that the process has begun to read. `enough` is set when it
    has begun to read `number` bodies.
    """

    def __init__(self, number: int) -> None:
        self._number, self.reading = number, list[str]()
        self.enough, self.may_end = asyncio.Event(), asyncio.Event()

    async def body(self, key: str) -> AsyncIterator[bytes]:
        self.reading.append(key)
        if len(self.reading) == self._number:
            self.enough.set()
        await self.may_end.wait()
        yield BODY


class WholeBody:
    """A request body that is sent byte by byte. `is_read` is True when the process has read all of it.

    Clients read a response only after they have sent the whole body.
    """

    def __init__(self, content: bytes) -> None:
        self._content, self.is_read = content, False

    async def pieces(self) -> AsyncIterator[bytes]:
        for byte in self._content:
            yield bytes([byte])
        self.is_read = True


async def all_steps() -> None:
    """Run the event loop until no request can continue by itself."""
    for _ in range(1000):
        await asyncio.sleep(0)


async def create(
    api: ApiFixture, key: str, content: bytes | AsyncIterator[bytes] = BODY, tenant: str = "default"
) -> httpx.Response:
    headers = {**VERSION, "Idempotency-Key": key, "Content-Type": "application/json", "X-Tenant": tenant}
    return await api.http.post(PATH, content=content, headers=headers)


async def test_a_tenant_takes_half_of_the_places_for_repeated_creations_and_others_wait() -> None:
    bodies = SlowBodies(MAX_REPEATS // 2)
    async with open_api() as api:
        first = [(await create(api, key)).json()["id"] for key in KEYS]
        repeats = [asyncio.create_task(create(api, key, bodies.body(key))) for key in KEYS]
        await bodies.enough.wait()
        await all_steps()
        assert bodies.reading == KEYS[: MAX_REPEATS // 2]
        bodies.may_end.set()
        assert [answer.json()["id"] for answer in await asyncio.gather(*repeats)] == first


async def test_a_repeated_creation_that_gets_no_place_in_a_minute_is_refused_and_can_be_sent_again() -> None:
    """Requests of two other tenants use all places. Their places become free because sending their bodies
    takes too long.
    """
    bodies = SlowBodies(MAX_REPEATS)
    async with open_api() as api:
        created = await create(api, "key", tenant="green")
        places = [(key, tenant) for key in KEYS[: MAX_REPEATS // 2] for tenant in ("red", "blue")]
        for key, tenant in places:
            await create(api, key, tenant=tenant)
        others = [asyncio.create_task(create(api, key, bodies.body(key), tenant)) for key, tenant in places]
        await bodies.enough.wait()
        body = WholeBody(BODY)
        waiting = asyncio.create_task(create(api, "key", body.pieces(), tenant="green"))
        await all_steps()
        assert not waiting.done()
        skip_time(60)
        refused = await waiting
        assert (refused.status_code, error_of(refused).type) == (429, "rate_limit_error")
        expected = (
            f"Too many repeated bodies are being read: none of {MAX_REPEATS} places was free within 60 s."
        )
        assert error_of(refused).message.startswith(expected)
        assert refused.headers["Retry-After"]
        assert body.is_read
        await asyncio.gather(*others)
        assert (await create(api, "key", tenant="green")).json()["id"] == created.json()["id"]


@pytest.mark.parametrize(
    ("limit", "body", "message"),
    [
        ({"max_message_requests": 1}, TWO, "at most 1 items"),
        ({"max_message_batch_bytes": len(BODY)}, TWO, f"The body is too large: at most {len(BODY)} bytes"),
        ({"max_message_batch_bytes": len(BODY)}, BODY + b" " * 70_000, "The body is too large"),
    ],
)
async def test_a_repeated_body_has_the_limits_of_the_first(
    limit: dict[str, object], body: bytes, message: str
) -> None:
    async with open_api(**limit) as api:
        assert (await create(api, "key")).status_code == 200
        refused = await create(api, "key", body)
        assert (refused.status_code, error_of(refused).type) == (413, "request_too_large")
        assert message in error_of(refused).message


async def test_a_repeated_body_that_is_refused_is_read_to_its_end() -> None:
    async with open_api() as api:
        assert (await create(api, "key")).status_code == 200
        body = WholeBody(b"[" + BODY)
        assert (await create(api, "key", body.pieces())).status_code == 400
        assert body.is_read
