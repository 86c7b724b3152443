"""Retry and resume while workers are killed: no line that has a result is sent again."""

import json
from collections import Counter
from collections.abc import Iterator

import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from tests.clients import http_client
from tests.e2e.batches import CHAT, check_conservation, ended, lines_of, settled, submit
from tests.e2e.stack import MODELS, Stack, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Stack]:
    """A stack that only this file uses, so that its workers may be killed."""
    # A worker on a busy machine must not count as lost: its lines would be sent again.
    with dev("--workers", "2", BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS="30") as stack:
        yield stack


def lines(name: str, count: int) -> list[dict[str, object]]:
    """Return `count` input lines, of which the backend rejects every tenth.

    Their field `user` identifies them in the simulator's record of requests.
    """
    return [
        {"custom_id": f"{name}-{n}", "method": "POST", "url": CHAT, "body": body(f"{name}-{n}", n)}
        for n in range(count)
    ]


def body(name: str, n: int) -> dict[str, object]:
    trouble = "sim:400 " if n % 10 == 3 else ""
    messages = [{"role": "user", "content": name}]
    return {"model": MODELS[n % len(MODELS)], "messages": messages, "user": f"{trouble}{name}"}


async def requests_by_line(stack: Stack) -> Counter[str]:
    """Return the number of requests that the simulator received for each line, over all batches."""
    async with http_client() as http:
        entries = (await http.get(stack.simulator + "/admin/ledger")).raise_for_status().json()["entries"]
    found = Counter[str]()
    for entry in entries:
        found[str(entry["user"]).split()[-1]] += entry["requests"]
    return found


async def rerun(client: AsyncOpenAI, batch_id: str, kind: str) -> Batch:
    return await client.post(f"/batches/{batch_id}/x/{kind}", body={"completion_window": "1h"}, cast_to=Batch)


async def test_a_resumed_batch_sends_only_unsettled_lines_even_if_its_worker_is_killed(
    own_stack: Stack,
) -> None:
    stack, sent = own_stack, lines("resumed", 600)
    await stack.heal()
    for model in (MODELS[0], MODELS[2]):  # so that it ends only by the cancel, with lines of both left
        await stack.faults(model=model, kind="hang", rate=1.0)
    await stack.faults(kind="slow", seconds=1.0, rate=1.0)
    async with stack.client() as client:
        first = await submit(client, sent)
        await settled(client, first.id, 60)
        await client.batches.cancel(first.id)
        first = await ended(client, first.id)
        await stack.heal()
        await stack.faults(model=MODELS[0], kind="hang", rate=1.0)  # so that it runs until the kill
        await stack.faults(kind="slow", seconds=1.0, rate=1.0)
        before = await requests_by_line(stack)
        done = {line.custom_id for line in await lines_of(client, first.output_file_id)}
        done |= {line.custom_id for line in await lines_of(client, first.error_file_id) if line.error is None}
        second = await rerun(client, first.id, "resume")
        assert (await rerun(client, first.id, "resume")).id == second.id
        await settled(client, second.id, len(done) + 40)
        stack.kill("worker")
        await stack.heal()
        second = await ended(client, second.id)
        await check_conservation(client, second, sent)
    again = await requests_by_line(stack)
    assert len(done) >= 60
    assert second.status == "completed"
    assert {name for name in done if again[name] != before[name]} == set()


async def test_a_retried_batch_sends_only_the_lines_that_failed(own_stack: Stack) -> None:
    stack, sent = own_stack, lines("retried", 100)
    await stack.heal()
    async with stack.client() as client:
        first = await ended(client, (await submit(client, sent)).id)
        second = await ended(client, (await rerun(client, first.id, "retry")).id)
        again = await lines_of(client, second.error_file_id)
        source = await client.files.content(second.input_file_id)
    counts = await requests_by_line(stack)
    failed = [f"retried-{n}" for n in range(100) if n % 10 == 3]
    assert [line.custom_id for line in again] == failed
    assert [json.loads(line)["custom_id"] for line in source.text.splitlines()] == failed
    assert {name: counts[name] for name in failed} == dict.fromkeys(failed, 2)
    assert {counts[f"retried-{n}"] for n in range(100) if n % 10 != 3} == {1}
