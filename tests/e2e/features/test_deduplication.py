"""Equal lines on a running stack are sent once, and all of them get the response, even after kills."""

from collections import Counter
from collections.abc import Iterator

import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from tests.clients import http_client
from tests.e2e.batches import (
    CHAT,
    check_conservation,
    ended,
    lines_of,
    settled,
    submit,
    until,
)
from tests.e2e.stack import MODELS, Stack, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LINES, QUESTIONS = 400, 80


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Stack]:
    """A stack with deduplication that only this file uses, so that its worker may be killed."""
    with dev("--workers", "1", BATCHWRIGHT_DEDUPLICATE="true") as stack:
        yield stack


def question(n: int) -> int:
    return n * 7 % QUESTIONS


def lines(name: str) -> list[dict[str, object]]:
    """Return input lines with five equal lines for each question.

    The backend rejects every tenth question.
    """
    return [
        {
            "custom_id": f"{name}-{n}",
            "method": "POST",
            "url": CHAT,
            "body": {
                "model": MODELS[question(n) % len(MODELS)],
                "messages": [{"role": "user", "content": f"{name} asks {question(n)}"}],
                "user": f"{'sim:400 ' if question(n) % 10 == 3 else ''}{name}-{question(n)}",
            },
        }
        for n in range(LINES)
    ]


async def requests_by_text(stack: Stack, name: str) -> Counter[str]:
    """Return the number of requests that the simulator received for each question."""
    async with http_client() as http:
        entries = (await http.get(stack.simulator + "/admin/ledger")).raise_for_status().json()["entries"]
    found = Counter[str]()
    for entry in entries:
        user = str(entry["user"]).split()[-1]
        if user.startswith(name):
            found[user] += entry["requests"]
    return found


async def check_answers(client: AsyncOpenAI, batch: Batch) -> None:
    """Check that equal lines have equal responses."""
    answers: dict[int, set[str]] = {}
    for line in await lines_of(client, batch.output_file_id):
        assert line.response is not None
        n = int(line.custom_id.split("-")[1])
        answers.setdefault(question(n), set()).add(line.response.model_dump_json())
    assert {len(of_one) for of_one in answers.values()} == {1}


async def test_equal_lines_are_sent_once_and_all_answered_even_if_a_worker_is_killed(
    own_stack: Stack,
) -> None:
    stack, sent = own_stack, lines("killed")
    await stack.faults(model=MODELS[0], kind="hang", rate=1.0)  # so that the batch runs until the kill
    await stack.faults(kind="slow", seconds=1.0, rate=1.0)
    async with stack.client() as client:
        batch = await submit(client, sent)
        await settled(client, batch.id, 10)
        stack.kill("worker")
        await stack.heal()
        batch = await ended(client, batch.id)
        await check_conservation(client, batch, sent)
        await check_answers(client, batch)
    counts = batch.request_counts
    assert counts is not None
    assert (batch.status, counts.failed) == ("completed", LINES // 10)
    found = await requests_by_text(stack, "killed")
    assert len(found) == QUESTIONS
    # Only requests in flight when the worker died are sent again.
    assert sum(found.values()) <= 2 * QUESTIONS


async def test_a_batch_that_is_cancelled_and_resumed_has_every_line_once(own_stack: Stack) -> None:
    stack, sent = own_stack, lines("cancelled")
    await stack.faults(model=MODELS[0], kind="hang", rate=1.0)  # so that it ends only by the cancel
    async with stack.client() as client:
        first = await submit(client, sent)
        await settled(client, first.id, 10)
        await client.batches.cancel(first.id)
        first = await ended(client, first.id)
        await check_conservation(client, first, sent)
        await stack.heal()
        second = await client.post(f"/batches/{first.id}/x/resume", cast_to=Batch)
        second = await ended(client, second.id)
        await check_conservation(client, second, sent)
        await check_answers(client, second)
    assert (first.status, second.status) == ("cancelled", "completed")


async def test_the_statistics_count_the_requests_that_were_sent(own_stack: Stack) -> None:
    stack = own_stack
    await stack.heal()
    async with stack.client() as client:
        batch = await ended(client, (await submit(client, lines("counted"))).id)
    assert batch.status == "completed"

    async def is_reported() -> bool:
        async with http_client() as http:
            stats = (await http.get(stack.now.api + "/v1/stats")).raise_for_status().json()
        models = {row["name"]: row["requests"] for row in stats["models"]}
        requests = stats["requests"]["total"]
        backends = sum(row["requests"] for row in stats["backends"])
        return requests >= QUESTIONS and requests == backends == sum(models.values())

    await until(is_reported)
