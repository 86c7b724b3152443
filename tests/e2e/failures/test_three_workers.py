"""Three workers at full load: each line is sent once, one batch expires, and others are cancelled."""

import asyncio
from collections.abc import AsyncGenerator, Iterator

import pytest

from tests.clients import http_client
from tests.e2e.batches import chat_lines, check_conservation, ended, expired, settled, submit
from tests.e2e.stack import MODELS, Stack, dev
from tests.integration.starter.commands import batchwright

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
LINES = chat_lines(MODELS, each=1000)
# Generous: what a machine under load adds. Without an end, requests would be sent for longer than that.
SECONDS_TO_END, SECONDS_TO_STOP = 120, 30


@pytest.fixture(scope="module")
def three() -> Iterator[Stack]:
    # A worker on a busy machine must not count as lost: its slices would be sent again elsewhere.
    settings = {"BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "60", "BATCHWRIGHT_MODEL_IN_FLIGHT": "50"}
    with dev("--workers", "3", data=None, **settings) as started:
        yield started


@pytest.fixture
async def stack(three: Stack) -> AsyncGenerator[Stack]:
    yield three
    await three.heal()


async def last_request_at(stack: Stack) -> float:
    """Return the Unix time of the last request that the backend received."""
    async with http_client() as http:
        answer = await http.get(stack.simulator + "/admin/ledger")
    return max(entry["last_request_at"] for entry in answer.raise_for_status().json()["entries"])


async def test_three_workers_send_each_line_once(stack: Stack) -> None:
    async with stack.client() as client:
        before = set(await stack.requests_by_id())
        batch = await submit(client, LINES)
        done = await ended(client, batch.id)
        await check_conservation(client, done, LINES)
    requests = {key: count for key, count in (await stack.requests_by_id()).items() if key not in before}
    assert done.status == "completed"
    assert len(requests) == len(LINES)
    assert set(requests.values()) == {1}


async def test_the_deadline_under_full_load_ends_the_batch_soon_and_keeps_settled_lines(
    stack: Stack,
) -> None:
    for model in MODELS[1:]:  # 300 requests at once take these 2,000 lines longer than the longest window
        await stack.faults(model=model, kind="slow", seconds=60.0)
    async with stack.client() as client:
        done = await expired(client, LINES, lambda batch: batch.output_file_id is not None)
        await check_conservation(client, done, LINES)
    assert done.status == "expired"
    assert done.expires_at is not None
    assert done.expired_at is not None
    assert done.expires_at <= done.expired_at <= done.expires_at + SECONDS_TO_END
    assert await last_request_at(stack) <= done.expires_at + SECONDS_TO_STOP
    assert done.error_file_id is not None
    assert done.output_file_id is not None


async def test_cancels_from_the_api_and_the_command_line_at_once_are_one_cancel(stack: Stack) -> None:
    async with stack.backend.hold(MODELS[0]), stack.client() as client:
        batch = await submit(client, LINES)
        await settled(client, batch.id, 20)
        command = ("cancel", batch.id, "--url", stack.now.api)
        commands = [batchwright(*command) for _ in range(2)]
        cancels = [client.batches.cancel(batch.id) for _ in range(3)]
        results, answers = await asyncio.gather(asyncio.gather(*commands), asyncio.gather(*cancels))
        done = await ended(client, batch.id)
        await check_conservation(client, done, LINES)
    assert {answer.status for answer in answers} <= {"cancelling", "cancelled"}
    assert [result.stderr for result in results] == ["", ""]
    assert done.status == "cancelled"
    assert done.request_counts is not None
    assert done.request_counts.completed >= 20
