"""Actions of operators and tenants on batches of a running stack: delete, hold, prioritize, and
show slices.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from secrets import token_hex

import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError
from openai.types import Batch

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.operator import BatchSlicesObject, OperatorBatch
from batchwright.contracts.terms import ActivityState
from tests.clients import http_client
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@asynccontextmanager
async def operator(stack: Stack) -> AsyncGenerator[httpx.AsyncClient]:
    async with http_client(base_url=stack.now.api + "/admin") as http:
        yield http


async def count_settled(client: AsyncOpenAI, batch: Batch) -> int:
    counts = (await client.batches.retrieve(batch.id)).request_counts
    assert counts is not None
    return counts.completed + counts.failed


async def test_a_deleted_batch_leaves_its_input_and_nothing_else(stack: Stack) -> None:
    async with stack.client() as client:
        batch = await ended(client, (await submit(client, chat_lines(MODELS[:1], each=20))).id)
        assert batch.output_file_id is not None
        deleted = await client.delete(f"/batches/{batch.id}", cast_to=httpx.Response)
        assert deleted.json()["deleted"] is True
        for call, id in ((client.batches.retrieve, batch.id), (client.files.content, batch.output_file_id)):
            with pytest.raises(NotFoundError):
                await call(id)
        assert (await client.files.retrieve(batch.input_file_id)).id == batch.input_file_id
    folders = [path.name for path in stack.objects.rglob("*") if path.is_dir() and any(path.iterdir())]
    assert batch.id not in folders
    assert batch.output_file_id not in folders


async def test_a_held_tenant_waits_until_it_is_released_while_others_are_served(stack: Stack) -> None:
    tenant = f"held-{token_hex(4)}"
    lines = chat_lines(MODELS, each=20)
    async with operator(stack) as admin, stack.client(tenant) as client, stack.client() as other:
        (await admin.put("/holds", json={"tenant": tenant})).raise_for_status()
        held: list[Batch] = []

        async def waits_while_others_are_served() -> bool:
            """Return True if a new batch of the held tenant waits while batches of another tenant complete.

            A hold takes effect a little later, so it may be necessary to call this more than once.
            """
            held.append(await submit(client, lines))
            for _ in range(2):
                assert (await ended(other, (await submit(other, lines)).id)).status == "completed"
            return await count_settled(client, held[-1]) == 0

        async def says_so() -> bool:
            shown = await admin.get(f"/batches/{held[-1].id}")
            waiting = OperatorBatch.model_validate_json(shown.content).x_batchwright.waiting or []
            return any("an operator holds the tenant" in each.reason for each in waiting)

        await until(waits_while_others_are_served)
        await until(says_so)
        assert (await ended(other, (await submit(other, lines)).id)).status == "completed"
        assert await count_settled(client, held[-1]) == 0
        (await admin.delete("/holds", params={"tenant": tenant})).raise_for_status()
        done = await ended(client, held[-1].id)
        await check_conservation(client, done, lines)
    assert done.status == "completed"


async def test_the_slices_of_a_running_batch_are_shown_with_their_workers(stack: Stack) -> None:
    async with operator(stack) as admin, stack.client() as client, stack.backend.hold(MODELS[0]) as hold:
        batch = await hold.submit(client, chat_lines(MODELS[:2], each=50))
        await settled(client, batch.id, 50)
        shown = BatchSlicesObject.model_validate_json(
            (await admin.get(f"/batches/{batch.id}/slices")).content
        )
        await hold.release()
        await ended(client, batch.id)

        async def nothing_is_shown() -> bool:
            after = BatchSlicesObject.model_validate_json(
                (await admin.get(f"/batches/{batch.id}/slices")).content
            )
            return not after.steps and not after.data

        await until(nothing_is_shown, seconds=60)  # the activity of finalization ends after the batch
    (running,) = shown.data
    assert (running.model, running.number, running.state) == (MODELS[0], 0, ActivityState.RUNNING)
    assert (running.attempts, running.completed, running.segments) == (1, 0, 0)
    assert running.worker
    assert batch.created_at <= running.since


async def test_the_priority_of_a_running_batch_is_changed(stack: Stack) -> None:
    async with operator(stack) as admin, stack.client() as client, stack.backend.hold(MODELS[0]) as hold:
        batch = await hold.submit(client, chat_lines(MODELS[:1], each=50))
        changed = await admin.post(f"/batches/{batch.id}/priority", json={"priority": 5})
        assert OperatorBatch.model_validate_json(changed.content).x_batchwright.priority == 5
        await hold.release()
        done = BatchObject.model_validate((await ended(client, batch.id)).model_dump())
    assert (done.status, done.x_batchwright.priority) == ("completed", 5)
