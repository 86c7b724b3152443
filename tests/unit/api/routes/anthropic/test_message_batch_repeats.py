"""A process reads only some bodies of repeated creations at the same time."""

import asyncio
import json
from collections.abc import AsyncIterator

from batchwright.api.routes.anthropic.message_batches import MAX_REPEATS
from tests.fakes.api import open_api
from tests.unit.api.routes.anthropic.message_batch_requests import PARAMS, PATH, VERSION

BODY = json.dumps({"requests": [{"custom_id": "a", "params": PARAMS}]}).encode()


async def test_a_tenant_takes_half_of_the_places_for_repeated_creations_and_others_wait() -> None:
    reading, may_end, enough = list[str](), asyncio.Event(), asyncio.Event()

    async def body(key: str) -> AsyncIterator[bytes]:
        reading.append(key)
        if len(reading) == MAX_REPEATS // 2:
            enough.set()
        await may_end.wait()
        yield BODY

    async with open_api() as api:

        async def create(key: str, content: bytes | AsyncIterator[bytes]) -> str:
            headers = {**VERSION, "Idempotency-Key": key, "Content-Type": "application/json"}
            return (await api.http.post(PATH, content=content, headers=headers)).json()["id"]

        keys = [str(number) for number in range(MAX_REPEATS)]
        first = [await create(key, BODY) for key in keys]
        repeats = [asyncio.create_task(create(key, body(key))) for key in keys]
        await enough.wait()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert reading == keys[: MAX_REPEATS // 2]
        may_end.set()
        assert await asyncio.gather(*repeats) == first
