"""Two tenants of an organization share its budget: what one tenant uses, the other cannot use."""

import pytest
from openai.types import Batch

from batchwright.api.routes.admin.budget_groups import BudgetGroupObject
from batchwright.contracts.api_objects.quotas import GroupLimit, LimitsObject
from batchwright.starter.commands.tenants.budget_groups import BudgetGroupsOutput
from tests.clients import http_client
from tests.e2e.batches import a_day_that_lasts, chat_lines, first_with, lines_of, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.integration.starter.commands import batchwright

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LINES = chat_lines(MODELS[:1], each=10)


async def output_of(stack: Stack, *arguments: str) -> str:
    """Run `batchwright budget-groups` with these arguments, and return its JSON."""
    command = await batchwright("budget-groups", *arguments, "--json", database_url=stack.now.postgres)
    assert command.code == 0, command.stderr
    return command.stdout[0]


async def shared(stack: Stack, tenant: str) -> GroupLimit:
    async with http_client() as http:
        answer = await http.get(f"{stack.now.api}/v1/x/limits", headers={"X-Tenant": tenant})
    limit, _ = LimitsObject.model_validate_json(answer.raise_for_status().content).groups
    return limit


async def ran(stack: Stack, tenant: str, *, refused: int = 0) -> tuple[Batch, int]:
    async with stack.client(tenant) as client:
        return await first_with(client, LINES, refused=refused)


async def test_a_budget_used_up_by_one_tenant_of_an_organization_is_refused_to_the_other() -> None:
    await a_day_that_lasts()
    with dev("--workers", "1", data=None) as stack:
        await output_of(stack, "create", "organization", "group")
        await output_of(stack, "add", "organization", "group", "blue", "red")
        _, of_blue = await ran(stack, "blue")
        assert of_blue > 0
        await output_of(stack, "limit", "organization", "group", "--tokens-per-day", "1")
        batch, of_red = await ran(stack, "red", refused=len(LINES))

        async def is_reported() -> bool:
            return (await shared(stack, "red")).used == of_blue + of_red

        await until(is_reported)
        async with stack.client("red") as client:
            errors = [line.error for line in await lines_of(client, batch.error_file_id)]
        assert {error.code for error in errors if error} == {"policy_rejected"}
        assert all(error and "your organization group is used up" in error.message for error in errors)
        assert batch.output_file_id is None
        limit = await shared(stack, "red")
        assert (limit.name, limit.limit, limit.left) == ("group", 1, 0)
        [found] = BudgetGroupsOutput.model_validate_json(await output_of(stack, "list")).budget_groups
        assert (found.name, found.members, found.tokens_used) == ("group", ["blue", "red"], limit.used)
        await ran(stack, "alone")

        async with http_client() as http:
            path = f"{stack.now.api}/admin/budget-groups/organization/group"
            answer = await http.put(path, json={"tokens_per_day": 1_000_000})
        raised = BudgetGroupObject.model_validate_json(answer.raise_for_status().content)
        assert (raised.tokens_used, raised.members) == (limit.used, ["blue", "red"])
        await ran(stack, "red", refused=0)
