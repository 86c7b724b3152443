"""Three worker processes at full load: each line once, a window that closes, cancels from all sides."""

import asyncio
from collections.abc import AsyncGenerator, Iterator

import pytest

from tests.clients import http_client
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit
from tests.e2e.stack import MODELS, Stack, dev
from tests.integration.commands import batchwright

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
LINES = chat_lines(MODELS, each=1000)
# Generous: what a machine under load adds. Without an end it would take longer than that.
SECONDS_TO_END, SECONDS_TO_STOP = 60, 15


@pytest.fixture(scope="module")
def three() -> Iterator[Stack]:
    # A machine under load is no lost worker: its slices would be asked again elsewhere.
    with dev("--workers", "3", BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS="60") as stack:
        yield stack


@pytest.fixture
async def house(three: Stack) -> AsyncGenerator[Stack]:
    yield three
    await three.heal()


async def last_asked(house: Stack) -> float:
    """When the backend was asked last, in Unix seconds."""
    async with http_client() as http:
        answer = await http.get(house.simulator + "/admin/ledger")
    return max(entry["last_asked_at"] for entry in answer.raise_for_status().json()["entries"])


async def test_three_workers_ask_for_each_line_once(house: Stack) -> None:
    async with house.client() as client:
        before = set(await house.asked())
        batch = await submit(client, LINES)
        done = await ended(client, batch.id)
        await check_conservation(client, done, LINES)
    asked = {key: count for key, count in (await house.asked()).items() if key not in before}
    assert done.status == "completed"
    assert len(asked) == len(LINES)
    assert set(asked.values()) == {1}


async def test_a_window_that_closes_under_full_load_ends_the_batch_soon_and_keeps_what_settled(
    house: Stack,
) -> None:
    await house.faults(kind="slow", seconds=1.0, rate=1.0)
    async with house.client() as client:
        batch = await submit(client, LINES, window="10s")
        done = await ended(client, batch.id)
        await check_conservation(client, done, LINES)
    assert done.status == "expired"
    assert done.expires_at is not None
    assert done.expired_at is not None
    assert done.expires_at <= done.expired_at <= done.expires_at + SECONDS_TO_END
    assert await last_asked(house) <= done.expires_at + SECONDS_TO_STOP
    assert done.error_file_id is not None


async def test_cancels_from_the_api_and_the_command_line_at_once_are_one_cancel(house: Stack) -> None:
    await house.faults(kind="slow", seconds=1.0, rate=1.0)
    async with house.client() as client:
        batch = await submit(client, LINES)
        await settled(client, batch.id, 20)
        told = ("cancel", batch.id, "--url", house.now.api)
        commands = [batchwright(*told) for _ in range(2)]
        cancels = [client.batches.cancel(batch.id) for _ in range(3)]
        said, answers = await asyncio.gather(asyncio.gather(*commands), asyncio.gather(*cancels))
        done = await ended(client, batch.id)
        await check_conservation(client, done, LINES)
    assert {answer.status for answer in answers} <= {"cancelling", "cancelled"}
    assert [command.complained for command in said] == ["", ""]
    assert done.status == "cancelled"
    assert done.request_counts is not None
    assert done.request_counts.completed >= 20
