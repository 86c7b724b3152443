"""Two tenants of one organization on a running stack: what one uses up, the other has not got any more."""

import pytest
from openai.types import Batch

from api.limits import LimitsObject, SharedLimit
from api.organizations import OrganizationObject
from starter.commands.organizations import Organizations
from tests.clients import http_client
from tests.e2e.batches import chat_lines, first_with, lines_of, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.integration.commands import batchwright

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LINES = chat_lines(MODELS[:1], each=10)


async def said(stack: Stack, *arguments: str) -> str:
    """By `batchwright organizations`."""
    command = await batchwright("organizations", *arguments, "--json", database_url=stack.now.postgres)
    assert command.code == 0, command.complained
    return command.said[0]


async def shared(stack: Stack, tenant: str) -> SharedLimit:
    async with http_client() as http:
        answer = await http.get(f"{stack.now.api}/v1/x/limits", headers={"X-Tenant": tenant})
    limit = LimitsObject.model_validate_json(answer.raise_for_status().content).organization
    assert limit is not None
    return limit


async def ran(stack: Stack, tenant: str, *, refused: int = 0) -> tuple[Batch, int]:
    async with stack.client(tenant) as client:
        return await first_with(client, LINES, refused=refused)


async def test_what_one_tenant_of_an_organization_uses_up_is_refused_to_the_other() -> None:
    with dev("--workers", "1", data=None) as stack:
        await said(stack, "create", "group")
        await said(stack, "add", "group", "blue", "red")
        _, of_blue = await ran(stack, "blue")
        assert of_blue > 0
        await said(stack, "limit", "group", "--tokens-per-day", "1")
        batch, of_red = await ran(stack, "red", refused=len(LINES))

        async def is_told() -> bool:
            return (await shared(stack, "red")).used == of_blue + of_red

        await until(is_told)
        async with stack.client("red") as client:
            errors = [line.error for line in await lines_of(client, batch.error_file_id)]
        assert {error.code for error in errors if error} == {"policy_rejected"}
        assert all(error and "your organization group is used up" in error.message for error in errors)
        assert batch.output_file_id is None
        limit = await shared(stack, "red")
        assert (limit.name, limit.limit, limit.left) == ("group", 1, 0)
        [found] = Organizations.model_validate_json(await said(stack, "list")).organizations
        assert (found.name, found.tenants, found.used) == ("group", ["blue", "red"], limit.used)
        await ran(stack, "alone")

        async with http_client() as http:
            path = f"{stack.now.api}/admin/organizations/group"
            answer = await http.put(path, json={"tokens_per_day": 1_000_000})
        raised = OrganizationObject.model_validate_json(answer.raise_for_status().content)
        assert (raised.tokens_used, raised.tenants) == (limit.used, ["blue", "red"])
        await ran(stack, "red", refused=0)
