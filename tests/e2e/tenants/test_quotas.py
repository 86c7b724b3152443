"""Quotas on a running stack are released even after kills. Permissions are withdrawn while a batch runs."""

import json
from collections.abc import Iterator

import pytest
from openai.types import Batch

from batchwright.database.driver import connect as connect_database
from tests.clients import http_client
from tests.e2e.batches import (
    a_day_that_lasts,
    chat_lines,
    check_conservation,
    ended,
    lines_of,
    settled,
    submit,
    until,
)
from tests.e2e.stack import MODELS, Stack, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FREE, HELD, SLOW = MODELS
SETTINGS = {
    "BATCHWRIGHT_MODELS": json.dumps({SLOW: {"in_flight": 2}}),
    "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "30",  # a worker on a busy machine must not count as lost
}


@pytest.fixture(scope="module")
def quota_stack() -> Iterator[Stack]:
    with dev("--workers", "1", data=None, **SETTINGS) as stack:
        yield stack


async def allow(stack: Stack, tenant: str, **quotas: object) -> None:
    async with http_client() as http:
        answer = await http.put(f"{stack.now.api}/admin/quotas", json={"tenant": tenant, **quotas})
    answer.raise_for_status()


async def used(stack: Stack, tenant: str) -> dict[str, int]:
    async with http_client() as http:
        answer = await http.get(f"{stack.now.api}/v1/x/limits", headers={"X-Tenant": tenant})
    return {one["quota"]: one["used"] for one in answer.raise_for_status().json()["data"]}


async def enqueued(stack: Stack, tenant: str) -> int:
    return (await used(stack, tenant))["enqueued_lines"]


async def until_spent(stack: Stack, tenant: str, tokens: int) -> None:
    """Wait until the API shows that the tenant has used `tokens` tokens.

    Workers report their usage once a second.
    """

    async def is_so() -> bool:
        return (await used(stack, tenant))["tokens_per_day"] == tokens

    await until(is_so)


async def until_enqueued(stack: Stack, tenant: str, lines: int) -> None:
    async def is_so() -> bool:
        return await enqueued(stack, tenant) == lines

    await until(is_so)


def codes(batch: Batch) -> list[str | None]:
    return [error.code for error in (batch.errors and batch.errors.data) or []]


async def test_reserved_quota_is_refused_to_other_batches_and_released_even_if_any_process_is_killed(
    quota_stack: Stack,
) -> None:
    stack = quota_stack
    await stack.heal()
    await stack.faults(model=HELD, kind="hang", rate=1.0)
    await allow(stack, "blue", enqueued_lines=60)
    async with stack.client("blue") as client:
        first = await submit(client, chat_lines([FREE, HELD], each=25))
        await until_enqueued(stack, "blue", 25)
        refused = await ended(client, (await submit(client, chat_lines([FREE], each=36))).id)
        assert (refused.status, codes(refused)) == ("failed", ["token_limit_exceeded"])

        killed = stack.kill("worker")

        async def replaced() -> bool:
            return bool(stack.now.pids.worker) and not set(killed) & set(stack.now.pids.worker)

        await until(replaced)
        fits = await ended(client, (await submit(client, chat_lines([FREE], each=35))).id)
        assert fits.status == "completed"
        await until_enqueued(stack, "blue", 25)

        await client.batches.cancel(first.id)
        assert (await ended(client, first.id)).status == "cancelled"
        await until_enqueued(stack, "blue", 0)
        again = await ended(client, (await submit(client, chat_lines([FREE], each=60))).id)
        assert again.status == "completed"
        await until_enqueued(stack, "blue", 0)


async def test_a_budget_that_is_used_up_refuses_only_the_remaining_lines_of_that_tenant(
    quota_stack: Stack,
) -> None:
    stack = quota_stack
    await stack.heal()
    await a_day_that_lasts()
    lines = chat_lines([FREE, SLOW], each=150)
    async with stack.client("green") as client, stack.client("other") as other:
        unlimited = await ended(other, (await submit(other, lines)).id)
        assert unlimited.usage is not None
        budget = unlimited.usage.total_tokens // 2
        # The first half is used up long before the rest could be sent, which would take two minutes.
        await stack.faults(model=SLOW, kind="slow", seconds=2.0, rate=1.0)
        await allow(stack, "green", tokens_per_day=budget)
        batch = await ended(client, (await submit(client, lines)).id)
        assert (batch.status, unlimited.status) == ("completed", "completed")
        await check_conservation(client, batch, lines)
        assert batch.usage is not None
        assert budget <= batch.usage.total_tokens < unlimited.usage.total_tokens
        errors = await lines_of(client, batch.error_file_id)
        assert {line.error.code for line in errors if line.error} == {"policy_rejected"}
        assert {line.id for line in errors} & (await stack.requests_by_id()).keys() == set()
        again = await ended(client, (await submit(client, chat_lines([FREE], each=2))).id)
        assert again.request_counts is not None
        assert again.request_counts.failed == 2
        await until_spent(stack, "green", batch.usage.total_tokens)


async def test_a_permission_removed_during_a_batch_rejects_only_the_remaining_lines_of_that_model(
    quota_stack: Stack,
) -> None:
    stack = quota_stack
    await stack.heal()
    await stack.faults(model=SLOW, kind="slow", seconds=2.0, rate=1.0)
    lines = chat_lines([FREE, SLOW], each=150)
    async with stack.client("red") as client:
        batch = await submit(client, lines)
        await settled(client, batch.id, 150 + 4)
        await allow(stack, "red", models=[FREE])
        done = await ended(client, batch.id)
        assert done.status == "completed"
        await check_conservation(client, done, lines)
        errors = await lines_of(client, done.error_file_id)
        assert {line.error.code for line in errors if line.error} == {"policy_rejected"}
        assert all(line.response is None for line in errors)
        assert {int(line.custom_id[-5:]) % 2 for line in errors} == {1}
        counts = done.request_counts
        assert counts is not None
        assert 154 <= counts.completed < 300
        requests = await stack.requests_by_id()
        refused = {line.id for line in errors} & requests.keys()
        assert refused == set()
        later = await ended(client, (await submit(client, chat_lines([SLOW], each=2))).id)
        assert later.request_counts is not None
        assert (later.status, later.request_counts.failed) == ("completed", 2)


async def test_a_batch_that_cannot_be_done_in_time_is_refused_and_none_of_its_lines_is_sent(
    quota_stack: Stack,
) -> None:
    """An earlier batch has shown that the model settles one line per second."""
    stack = quota_stack
    await stack.heal()
    await stack.faults(model=SLOW, kind="slow", seconds=2.0, rate=1.0)
    await allow(stack, "violet", window_too_short="refuse")
    lines = chat_lines([SLOW], each=1000, user="too many")
    async with stack.client("violet") as client:
        busy = await submit(client, chat_lines([SLOW], each=400))
        await until_speed_is_known(stack, SLOW)
        refused = await ended(client, (await submit(client, lines, window="2m")).id)
        assert (refused.status, codes(refused)) == ("failed", ["completion_window_too_short"])
        assert refused.to_dict()["x_batchwright"]["start_forecast"]["window"] == "cannot"  # pyright: ignore[reportIndexIssue] - the values are typed as object
        assert 0 < await enqueued(stack, "violet") <= 400
        assert await stack.requests_by_id(user="too many") == {}
        await client.batches.cancel(busy.id)
        await ended(client, busy.id)


async def until_speed_is_known(stack: Stack, model: str) -> None:
    """Wait until a control worker has measured the speed of the model, which takes a minute."""
    database = await connect_database(stack.now.postgres)

    async def is_known() -> bool:
        return await database.fetchrow("SELECT FROM model_speeds WHERE model = $1", model) is not None

    try:
        await until(is_known)
    finally:
        await database.close()
