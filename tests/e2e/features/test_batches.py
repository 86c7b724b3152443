"""Batches of a user of the official client, on a stack without failures."""

import asyncio

import pytest
from openai.types import Batch

from tests.e2e.batches import (
    chat_line,
    chat_lines,
    check_conservation,
    ended,
    expired,
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


async def test_an_unserved_model_fails_only_its_own_lines(stack: Stack) -> None:
    async with stack.client() as client:
        lines = [*chat_lines(MODELS, each=5), chat_line("stranger", "nobody-serves-this")]
        batch = await ended(client, (await submit(client, lines)).id)
        await check_conservation(client, batch, lines)
        [line] = await lines_of(client, batch.error_file_id)
    assert batch.status == "completed"
    assert (line.custom_id, line.error and line.error.code) == ("stranger", "model_not_found")


async def test_a_running_batch_shows_which_lines_fail_and_why(stack: Stack) -> None:
    """The first model answers 400, the second is unavailable for a while, and no backend serves the third."""
    await stack.faults(model=MODELS[0], kind=400, rate=1.0)
    await stack.faults(model=MODELS[1], kind=503, rate=1.0)
    lines = [*chat_lines(MODELS[:2], each=5), chat_line("stranger", "nobody-serves-this")]
    expected = [("http_400", MODELS[0], 5), ("model_not_found", "nobody-serves-this", 1)]
    async with stack.client() as client:
        batch = await submit(client, lines)

        async def shows_errors() -> bool:
            return errors_of(await client.batches.retrieve(batch.id)) == expected

        await until(shows_errors)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        await stack.heal()
        batch = await ended(client, batch.id)
        await check_conservation(client, batch, lines)
    assert (batch.status, errors_of(batch)) == ("completed", expected)


def errors_of(batch: Batch) -> list[tuple[str, str, int]]:
    summary = (batch.model_extra or {})["x_batchwright"]["errors_summary"]
    return [(each["code"], each["model"], each["count"]) for each in summary]


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


async def test_a_slice_of_several_turns_sends_each_line_once(stack: Stack) -> None:
    async with stack.client() as client:
        await stack.faults(model=MODELS[0], kind="slow", seconds=1.0, rate=1.0)
        # One slice; at 20 in flight it takes three turns of 2 s.
        lines = chat_lines(MODELS[:1], each=120, user="of several turns")
        batch = await ended(client, (await submit(client, lines)).id)
        await check_conservation(client, batch, lines)
        output = await lines_of(client, batch.output_file_id)
    assert batch.status == "completed"
    assert await stack.requests_by_id(user="of several turns") == {line.id: 1 for line in output}
    assert len(output) == 120


async def test_a_small_batch_of_one_tenant_does_not_wait_for_a_large_one_of_another(stack: Stack) -> None:
    async with stack.client("large") as large, stack.client("small") as small:
        # The large batch takes at least 90 s: two workers send up to 100 lines at once.
        await stack.faults(model=MODELS[1], kind="slow", seconds=3.0, rate=1.0)
        first = await submit(large, chat_lines(MODELS[1:2], each=6000))
        await settled(large, first.id, 1)
        second = await ended(small, (await submit(small, chat_lines(MODELS[1:2], each=20))).id)
        await large.batches.cancel(first.id)
        cut_off = await ended(large, first.id)
    assert (second.status, cut_off.status) == ("completed", "cancelled")


async def test_a_cancelled_batch_keeps_settled_lines(stack: Stack) -> None:
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


async def test_an_expired_batch_keeps_settled_lines(stack: Stack) -> None:
    async with stack.client() as client:
        await stack.faults(model=MODELS[2], kind="hang", rate=1.0)
        lines = chat_lines(MODELS, each=100)
        batch = await expired(client, lines, lambda batch: completed(batch) == 200)
        await check_conservation(client, batch, lines)
        errors = await lines_of(client, batch.error_file_id)
    assert batch.status == "expired"
    assert batch.finalizing_at is None
    assert batch.expired_at is not None
    assert batch.expires_at is not None
    assert batch.expired_at >= batch.expires_at
    assert {line.error and line.error.code for line in errors} == {"batch_expired"}
    assert {line.custom_id for line in errors} == {line["custom_id"] for line in lines[2 :: len(MODELS)]}


def completed(batch: Batch) -> int:
    assert batch.request_counts is not None
    return batch.request_counts.completed


async def test_many_batches_at_once_all_complete(stack: Stack) -> None:
    async with stack.client() as client:
        lines = chat_lines(MODELS, each=4)
        batches = await asyncio.gather(*(submit(client, lines) for _ in range(10)))
        for batch in await asyncio.gather(*(ended(client, batch.id) for batch in batches)):
            assert batch.status == "completed"
            await check_conservation(client, batch, lines)
