"""Single calls on a whole stack: each acknowledged call is answered exactly once, whichever process is
killed.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from tests.clients import http_client
from tests.e2e.batches import until
from tests.e2e.stack import MODELS, Part, Stack, dev
from tests.fakes.webhook_receiver import WebhookReceiver, receiving

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
PARTS: tuple[Part, ...] = ("worker", "api", "postgres", "temporal")
CALLS = 15  # before each kill


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with dev(
        BATCHWRIGHT_WEBHOOK_ALLOWED_NETWORKS='["127.0.0.0/8"]', BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS="10"
    ) as stack:
        yield stack


async def submit(stack: Stack, receiver: WebhookReceiver, name: str) -> str | None:
    """Submit a job, and return its id if it was acknowledged."""
    body = {
        "model": MODELS[0],
        "payload": {"messages": [{"role": "user", "content": name}], "user": name},
        "callback_url": receiver.url,
    }
    async with http_client(stack.now.api) as http:
        with suppress(httpx.TransportError):
            response = await http.post("/queue/submit", json=body, headers={"Idempotency-Key": name})
            if response.status_code == 200:
                return response.json()["job_id"]
    return None


async def submit_until_acknowledged(stack: Stack, receiver: WebhookReceiver, name: str) -> str:
    while True:
        with suppress(FileNotFoundError, ValueError):  # `dev` is writing the new addresses
            if (id := await submit(stack, receiver, name)) is not None:
                return id
        await asyncio.sleep(0.2)


async def test_every_acknowledged_call_is_answered_once_whatever_dies(stack: Stack) -> None:
    """One part of the stack after the other is killed. Calls are acknowledged right before and during each
    kill.
    """
    async with receiving() as receiver:
        acknowledged: dict[str, str] = {}  # ids by name
        async with stack.backend.hold(MODELS[0]) as hold:
            for part in PARTS:
                names = [f"{part}-{number}" for number in range(CALLS)]
                ids = await asyncio.gather(
                    *(submit_until_acknowledged(stack, receiver, name) for name in names)
                )
                acknowledged.update(zip(names, ids, strict=True))
                stack.kill(part)
                late = f"{part}-late"
                acknowledged[late] = await submit_until_acknowledged(stack, receiver, late)
            await hold.release()

        async def are_answered() -> bool:
            return {json.loads(each.body)["job_id"] for each in receiver.received} == set(
                acknowledged.values()
            )

        await until(are_answered)
        assert len(set(acknowledged.values())) == len(PARTS) * (CALLS + 1)
        answers = {(each.id, each.body) for each in receiver.received}  # a delivery may be repeated
        assert len(answers) == len(acknowledged)
        assert {json.loads(body)["status"] for _, body in answers} == {"completed"}
        async with http_client(stack.now.api) as http:
            for id in acknowledged.values():
                job = (await http.get(f"/queue/{id}")).raise_for_status().json()
                assert job["result"] == next(
                    json.loads(body)["result"] for _, body in answers if id.encode() in body
                )
