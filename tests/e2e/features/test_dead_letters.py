"""Dead letters (lines that failed for good) on a running stack: listed after a kill, and retried as new
batches.
"""

from collections.abc import Iterator

import pytest
from openai import AsyncOpenAI

from tests.clients import http_client
from tests.e2e.batches import CHAT, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LINES = 120
POISON = [n for n in range(LINES) if n % 12 == 3]
REFUSED = [n for n in range(LINES) if n % 12 == 7]
HELD = [n for n in range(LINES) if n % 40 == 0]  # get no response until the worker has been killed


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Stack]:
    """A stack that only this file uses, so that its worker may be killed."""
    with dev("--workers", "1", BATCHWRIGHT_INITIAL_BACKOFF_SECONDS="0.05") as stack:
        yield stack


def lines() -> list[dict[str, object]]:
    """Return input lines for three kinds of answers.

    The backend answers some with 500, rejects others with 400, and holds the rest at their first attempt.
    """
    trouble = (
        dict.fromkeys(POISON, "sim:500 ")
        | dict.fromkeys(REFUSED, "sim:400 ")
        | dict.fromkeys(HELD, "sim:hold*1 ")
    )
    return [
        {
            "custom_id": f"line-{n}",
            "method": "POST",
            "url": CHAT,
            "body": {
                "model": MODELS[0],
                "messages": [{"role": "user", "content": f"line {n}"}],
                "user": f"{trouble.get(n, '')}line-{n}",
            },
        }
        for n in range(LINES)
    ]


async def until_counted(client: AsyncOpenAI, batch_id: str, total: int) -> None:
    """Wait until the batch has counted `total` lines."""

    async def is_so() -> bool:
        counts = (await client.batches.retrieve(batch_id)).request_counts
        return counts is not None and counts.total == total

    await until(is_so)


async def test_lines_that_used_up_their_attempts_are_listed_once_and_retried_once(own_stack: Stack) -> None:
    stack, sent = own_stack, lines()
    await stack.faults(kind="slow", seconds=0.3, rate=1.0)
    async with stack.client() as client, http_client(base_url=stack.now.api) as http:
        batch = await submit(client, sent)
        await settled(client, batch.id, 20)
        stack.kill("worker")
        await stack.heal()
        batch = await ended(client, batch.id)
        await check_conservation(client, batch, sent)
        page = (await http.get(f"/admin/dlq?batch_id={batch.id}&limit=100")).raise_for_status().json()
        dead_letters = page["data"]
        assert sorted(dead_letter["custom_id"] for dead_letter in dead_letters) == sorted(
            f"line-{n}" for n in POISON
        )
        assert {
            (dead_letter["attempts"], dead_letter["error"]["status_code"]) for dead_letter in dead_letters
        } == {(5, 500)}
        first = (await http.post(f"/admin/dlq/{dead_letters[0]['id']}/retry")).raise_for_status().json()
        await until_counted(client, first["id"], 1)
        response = (await http.post("/admin/dlq/retry-all", json={"batch_id": batch.id})).raise_for_status()
        [retried] = response.json()["data"]
        await until_counted(client, retried["batch_id"], len(POISON) - 1)
        again = (await http.post("/admin/dlq/retry-all", json={"batch_id": batch.id})).raise_for_status()
    assert again.json()["data"] == []
