"""Keys of one user share a budget on a running stack: what one key uses, another cannot use."""

import json

import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from batchwright.contracts.api_objects.quotas import LimitsObject
from batchwright.starter.commands.tenants.budget_groups import BudgetGroupsOutput
from tests.clients import http_client
from tests.e2e.batches import a_day_that_lasts, chat_lines, first_with, lines_of, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.integration.starter.commands import batchwright

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TENANT = "blue"
LINES = chat_lines(MODELS[:1], each=10)


async def output_of(stack: Stack, *arguments: str) -> str:
    command = await batchwright(*arguments, "--json", database_url=stack.now.postgres)
    assert command.code == 0, command.stderr
    return command.stdout[0]


async def on_groups(stack: Stack, *arguments: str) -> str:
    return await output_of(stack, "budget-groups", *arguments, "--tenant", TENANT)


async def new_key(stack: Stack, *options: str) -> str:
    return json.loads(await output_of(stack, "keys", "create", TENANT, *options))["secret_key"]


async def left(stack: Stack, key: str) -> tuple[str, int | str | None, int | str, int | str | None]:
    """Return the limits of the user to whom the key belongs: name, budget, tokens used, and tokens left."""
    async with http_client() as http:
        answer = await http.get(f"{stack.now.api}/v1/x/limits", headers={"Authorization": f"Bearer {key}"})
    user, _ = LimitsObject.model_validate_json(answer.raise_for_status().content).groups
    return user.name, user.limit, user.used, user.left


async def ran(stack: Stack, key: str, *, refused: int = 0) -> tuple[Batch, int]:
    async with AsyncOpenAI(base_url=stack.now.api + "/v1", api_key=key, max_retries=5) as client:
        return await first_with(client, LINES, refused=refused)


async def test_two_keys_of_a_user_share_its_budget_and_the_key_of_another_user_continues() -> None:
    await a_day_that_lasts()
    with dev("--workers", "1", data=None, BATCHWRIGHT_AUTH="api_key") as stack:
        await output_of(stack, "tenants", "create", TENANT)
        for user in ("alice", "bob"):
            await on_groups(stack, "create", "user", user)
        first, second = [await new_key(stack, "--user", "alice") for _ in range(2)]
        others = await new_key(stack, "--user", "bob")
        _, of_first = await ran(stack, first)
        assert of_first > 0
        await on_groups(stack, "limit", "user", "alice", "--tokens-per-day", "1")
        batch, of_second = await ran(stack, second, refused=len(LINES))
        used = of_first + of_second

        async def is_reported() -> bool:
            return await left(stack, second) == ("alice", 1, used, 0)

        await until(is_reported)
        async with AsyncOpenAI(base_url=stack.now.api + "/v1", api_key=second) as client:
            errors = [line.error for line in await lines_of(client, batch.error_file_id)]
        assert {error.code for error in errors if error} == {"policy_rejected"}
        assert all(error and "of the user alice is used up" in error.message for error in errors)
        assert batch.output_file_id is None
        _, of_others = await ran(stack, others)

        async def is_listed() -> bool:
            output = await on_groups(stack, "list")
            found = BudgetGroupsOutput.model_validate_json(output).budget_groups
            return [(row.name, row.tokens_used, len(row.members)) for row in found] == [
                ("alice", used, 2),
                ("bob", of_others, 1),
            ]

        await until(is_listed)
        await on_groups(stack, "add", "user", "bob", second.rpartition("_")[0])
        await ran(stack, second)
