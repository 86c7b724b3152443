"""An input that kills each worker that ingests it fails its own batch, and no other batch."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.batches import chat_line, chat_lines, check_conservation, ended, submit, until
from tests.e2e.deadly_input import DEADLY, DEATHS, MAX_DEATHS, count_deaths
from tests.e2e.stack import MODELS, Stack, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
DEADLY_LINES = [*chat_lines(MODELS, each=5), chat_line("deadly", MODELS[0], prompt=DEADLY)]


@contextmanager
def two_workers(deaths: Path, most: int) -> Generator[Stack]:
    """Context manager that runs a stack with two workers.

    Args:
        deaths: file that gets one byte for each worker that the input kills.
        most: number of workers that the input kills before it is harmless.
    """
    settings = {
        "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "10",
        "BATCHWRIGHT_PRE_CALL_HOOKS": '["tests.e2e.deadly_input:change_nothing"]',
        DEATHS: str(deaths),
        MAX_DEATHS: str(most),
    }
    with dev("--workers", "2", data=None, **settings) as stack:
        yield stack


async def test_an_input_that_kills_each_worker_fails_its_batch_and_another_batch_completes(
    tmp_path: Path,
) -> None:
    deaths = tmp_path / "deaths"
    lines = chat_lines(MODELS, each=20)
    with two_workers(deaths, most=1000) as stack:
        async with stack.client() as client:
            deadly = await submit(client, DEADLY_LINES)

            async def has_killed() -> bool:
                return count_deaths(deaths) > 0

            await until(has_killed)
            harmless = await submit(client, lines)
            done, failed = await asyncio.gather(ended(client, harmless.id), ended(client, deadly.id))
            await check_conservation(client, done, lines)
    assert done.status == "completed"
    assert failed.status == "failed"
    assert failed.errors is not None
    [error] = failed.errors.data or []
    assert error.code == "worker_crashed"
    assert (error.message or "").startswith("The input could not be prepared: workers crashed each time")
    assert count_deaths(deaths) == 5


async def test_a_batch_whose_input_kills_four_workers_completes_on_the_fifth(tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    with two_workers(deaths, most=4) as stack:
        async with stack.client() as client:
            batch = await submit(client, DEADLY_LINES)
            done = await ended(client, batch.id)
            await check_conservation(client, done, DEADLY_LINES)
    assert done.status == "completed"
    assert count_deaths(deaths) == 4
