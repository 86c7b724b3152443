"""What a user of the official client sees when nothing breaks."""

import asyncio

import pytest
from openai import AsyncOpenAI

from tests.e2e.batches import (
    ENDED,
    chat_line,
    chat_lines,
    check_conservation,
    ended,
    lines_of,
    settled,
    submit,
    until,
)
from tests.e2e.stack import MODELS, Stack

pytestmark = pytest.mark.e2e


async def test_three_models_in_one_batch_come_back_complete_and_in_order(stack: Stack) -> None:
    async with stack.client() as client:
        lines = chat_lines(MODELS, each=100)
        batch = await ended(client, (await submit(client, lines)).id)
        assert batch.status == "completed"
        assert batch.error_file_id is None
        assert batch.usage is not None
        assert batch.usage.total_tokens > 0
        await check_conservation(client, batch, lines)
        assert batch.model_extra is not None
        assert {
            (m["model"], m["lines"], m["completed"]) for m in batch.model_extra["x_batchwright"]["models"]
        } == {(model, 100, 100) for model in MODELS}


async def test_a_model_nobody_serves_fails_its_lines_and_no_others(stack: Stack) -> None:
    async with stack.client() as client:
        lines = [*chat_lines(MODELS, each=5), chat_line("stranger", "nobody-serves-this")]
        batch = await ended(client, (await submit(client, lines)).id)
        await check_conservation(client, batch, lines)
        [line] = await lines_of(client, batch.error_file_id)
    assert batch.status == "completed"
    assert (line.custom_id, line.error and line.error.code) == ("stranger", "model_not_found")


async def test_every_bad_line_of_an_input_is_reported(stack: Stack) -> None:
    async with stack.client() as client:
        good = chat_line("a", MODELS[0])
        lines: list[dict[str, object]] = [
            good,
            good,
            {**good, "custom_id": "b", "method": "GET"},
            {**good, "custom_id": "c", "body": {"model": MODELS[0]}},
        ]
        batch = await ended(client, (await submit(client, lines)).id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(error.line, error.code) for error in batch.errors.data or []] == [
        (2, "duplicate_custom_id"),
        (3, "invalid_method"),
        (4, "invalid_request"),
    ]


async def test_a_slice_that_outlives_several_turns_asks_each_line_once(stack: Stack) -> None:
    async with stack.client() as client:
        await stack.faults(model=MODELS[0], kind="slow", seconds=1.0, rate=1.0)
        # One slice; at 20 in flight it takes three turns of 2 s.
        lines = chat_lines(MODELS[:1], each=120, user="of several turns")
        batch = await ended(client, (await submit(client, lines)).id)
        await check_conservation(client, batch, lines)
        output = await lines_of(client, batch.output_file_id)
    assert batch.status == "completed"
    assert await stack.asked(user="of several turns") == {line.id: 1 for line in output}
    assert len(output) == 120


async def test_a_small_batch_of_one_tenant_does_not_wait_for_a_large_one_of_another(stack: Stack) -> None:
    async with stack.client("large") as large, stack.client("small") as small:
        await stack.faults(model=MODELS[1], kind="slow", seconds=0.3, rate=1.0)
        first = await submit(large, chat_lines(MODELS[1:2], each=6000))
        await settled(large, first.id, 1)
        second = await ended(small, (await submit(small, chat_lines(MODELS[1:2], each=20))).id)
        assert second.status == "completed"
        assert (await large.batches.retrieve(first.id)).status == "in_progress"
        await large.batches.cancel(first.id)
        await ended(large, first.id)


async def test_a_cancelled_batch_keeps_what_was_settled(stack: Stack) -> None:
    async with stack.client() as client:
        await stack.faults(model=MODELS[2], kind="hang", rate=1.0)  # so that it ends only by the cancel
        lines = chat_lines(MODELS, each=200)
        batch = await submit(client, lines)
        await settled(client, batch.id, 100)
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        batch = await ended(client, batch.id)
        await check_conservation(client, batch, lines)
        errors = await lines_of(client, batch.error_file_id)
    assert batch.status == "cancelled"
    assert batch.request_counts is not None
    assert batch.request_counts.completed >= 100
    assert {line.error and line.error.code for line in errors} == {"batch_cancelled"}


async def settles(client: AsyncOpenAI, batch_id: str, least: int) -> bool:
    """Whether it counts so many before it ends."""

    async def counts() -> bool:
        batch = await client.batches.retrieve(batch_id)
        counted = batch.request_counts
        return batch.status in ENDED or (counted is not None and counted.completed >= least)

    await until(counts)
    return (await client.batches.retrieve(batch_id)).status not in ENDED


async def test_a_window_that_closes_keeps_what_was_settled(stack: Stack) -> None:
    async with stack.client() as client:
        await stack.faults(model=MODELS[2], kind="hang", rate=1.0)
        lines = chat_lines(MODELS, each=100)
        for window in ("12s", "60s", "180s"):  # where the machine needs longer for the others
            batch = await submit(client, lines, window=window)
            if await settles(client, batch.id, 200):
                break
        batch = await ended(client, batch.id)
        await check_conservation(client, batch, lines)
        errors = await lines_of(client, batch.error_file_id)
    assert batch.status == "expired"
    assert batch.finalizing_at is None
    assert batch.expired_at is not None
    assert batch.expires_at is not None
    assert 0 <= batch.expired_at - batch.expires_at <= 60
    assert {line.error and line.error.code for line in errors} == {"batch_expired"}
    assert {line.custom_id for line in errors} == {line["custom_id"] for line in lines[2 :: len(MODELS)]}


async def test_many_batches_at_once_all_complete(stack: Stack) -> None:
    async with stack.client() as client:
        lines = chat_lines(MODELS, each=4)
        batches = await asyncio.gather(*(submit(client, lines) for _ in range(10)))
        for batch in await asyncio.gather(*(ended(client, batch.id) for batch in batches)):
            assert batch.status == "completed"
            await check_conservation(client, batch, lines)
