"""Keys of a user on a running stack: what one of them uses up, the other has not got any more."""

import json

import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from api.limits import LimitsObject
from starter.commands.users import Users
from tests.clients import http_client
from tests.e2e.batches import chat_lines, first_with, lines_of, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.integration.commands import batchwright

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TENANT = "blue"
LINES = chat_lines(MODELS[:1], each=10)


async def said(stack: Stack, *arguments: str) -> str:
    command = await batchwright(*arguments, "--json", database_url=stack.now.postgres)
    assert command.code == 0, command.complained
    return command.said[0]


async def new_key(stack: Stack, *options: str) -> str:
    return json.loads(await said(stack, "keys", "create", TENANT, *options))["secret_key"]


async def left(stack: Stack, key: str) -> tuple[str, int | None, int, int | None]:
    """Of the key's user, as the key is told: its name, what it may use, has used, and has left."""
    async with http_client() as http:
        answer = await http.get(f"{stack.now.api}/v1/x/limits", headers={"Authorization": f"Bearer {key}"})
    user = LimitsObject.model_validate_json(answer.raise_for_status().content).user
    assert user is not None
    return user.name, user.limit, user.used, user.left


async def ran(stack: Stack, key: str, *, refused: int = 0) -> tuple[Batch, int]:
    async with AsyncOpenAI(base_url=stack.now.api + "/v1", api_key=key, max_retries=5) as client:
        return await first_with(client, LINES, refused=refused)


async def test_two_keys_of_a_user_share_its_budget_and_the_key_of_another_goes_on() -> None:
    with dev("--workers", "1", data=None, BATCHWRIGHT_AUTH="api_key") as stack:
        await said(stack, "tenants", "create", TENANT)
        for user in ("alice", "bob"):
            await said(stack, "users", "create", TENANT, user)
        first, second = [await new_key(stack, "--user", "alice") for _ in range(2)]
        others = await new_key(stack, "--user", "bob")
        _, of_first = await ran(stack, first)
        assert of_first > 0
        await said(stack, "users", "limit", TENANT, "alice", "--tokens-per-day", "1")
        batch, of_second = await ran(stack, second, refused=len(LINES))
        used = of_first + of_second

        async def is_told() -> bool:
            return await left(stack, second) == ("alice", 1, used, 0)

        await until(is_told)
        async with AsyncOpenAI(base_url=stack.now.api + "/v1", api_key=second) as client:
            errors = [line.error for line in await lines_of(client, batch.error_file_id)]
        assert {error.code for error in errors if error} == {"policy_rejected"}
        assert all(error and "of the user alice is used up" in error.message for error in errors)
        assert batch.output_file_id is None
        _, of_others = await ran(stack, others)

        async def is_listed() -> bool:
            found = Users.model_validate_json(await said(stack, "users", "list", TENANT)).users
            return [(row.name, row.used, len(row.keys)) for row in found] == [
                ("alice", used, 2),
                ("bob", of_others, 1),
            ]

        await until(is_listed)
        await said(stack, "keys", "assign", second.rpartition("_")[0], "--user", "bob")
        await ran(stack, second)
