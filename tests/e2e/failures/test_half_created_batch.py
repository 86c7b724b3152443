"""The API is killed when the workflow of a batch has started, but its database row is not written yet."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress

import pytest
from openai import APIConnectionError, APIError

from batchwright.database.driver import connect as connect_database
from tests.constants import with_constants
from tests.e2e.batches import CHAT, chat_lines, check_conservation, ended, until
from tests.e2e.stack import MODELS, Stack, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
TENANT = "half-made"


@pytest.fixture
def stack() -> Iterator[Stack]:
    # The API must still wait for the locked table when it is killed, however slow the machine is.
    with dev(data=None, **with_constants(query_seconds=600)) as stack:
        yield stack


async def test_a_crash_between_the_start_of_the_run_and_the_row_leaves_a_batch_that_completes(
    stack: Stack,
) -> None:
    lines = chat_lines(MODELS, each=5)
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    server, database = await stack.server(), await connect_database(stack.now.postgres)

    async def runs() -> list[str]:
        return [run.id async for run in server.list_workflows(f"BatchwrightTenant = '{TENANT}'")]

    async def has_started() -> bool:
        return bool(await runs())

    async with stack.client(TENANT) as client:
        file = await client.files.create(file=("input.jsonl", content), purpose="batch")
        impatient = client.with_options(max_retries=0).batches
        await database.execute("BEGIN")
        await database.execute("LOCK TABLE batches IN EXCLUSIVE MODE")  # nobody writes a row now
        creating = asyncio.create_task(
            impatient.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        )
        await until(has_started)
        stack.kill("api")
        with pytest.raises(APIConnectionError):
            await creating
        assert await database.fetch("SELECT id FROM batches WHERE tenant = $1", TENANT) == []
        # PostgreSQL would execute the waiting statement of the killed API after the end of the lock.
        waiting = "SELECT pid FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
        await database.execute(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS waiting")
        await database.execute("COMMIT")
        await database.close()

        async def is_listed() -> bool:
            with suppress(APIError):  # until there is an API again
                return bool((await client.batches.list()).data)
            return False

        await until(is_listed)
        [batch] = (await client.batches.list()).data
        done = await ended(client, batch.id)
        await check_conservation(client, done, lines)
    assert [batch.id] == await runs()
    assert (done.status, done.error_file_id) == ("completed", None)
