"""A model is unavailable for longer than retries of a line last: its lines are delayed, and none fails."""

import time

import pytest

from tests.clients import http_client
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack

pytestmark = pytest.mark.e2e


async def reasons(stack: Stack, batch_id: str) -> dict[str | None, str]:
    """Return the reasons why the models of the batch wait, by model, as the API shows them."""
    async with http_client() as http:
        batch = (await http.get(f"{stack.now.api}/v1/batches/{batch_id}")).json()
    return {each["model"]: each["reason"] for each in batch["x_batchwright"]["waiting"]}


async def test_an_outage_of_one_of_three_models_delays_it_and_fails_no_line(stack: Stack) -> None:
    async with stack.client() as client:
        await stack.faults(model=MODELS[0], kind="503", rate=1.0)
        lines = chat_lines(MODELS, each=60)
        broken = time.monotonic()
        batch = await submit(client, lines)
        await settled(client, batch.id, 120)

        async def long_enough() -> bool:
            return time.monotonic() - broken >= 90

        await until(long_enough)
        halfway = await client.batches.retrieve(batch.id)
        assert halfway.request_counts is not None
        assert halfway.request_counts.failed == 0
        assert halfway.status == "in_progress"

        async def shows_the_reason() -> bool:
            why = "the backend accepts no requests now: it answered 503"
            return await reasons(stack, batch.id) == {MODELS[0]: why}

        await until(shows_the_reason)
        await stack.heal()
        done = await ended(client, batch.id)
        await check_conservation(client, done, lines)
    assert done.status == "completed"
    assert done.error_file_id is None
