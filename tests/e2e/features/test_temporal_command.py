"""Schedules that an operator uses with Temporal's own command `temporal schedule` instead of the API."""

import asyncio
import json
from datetime import UTC, datetime

import httpx
import pytest

from batchwright.contracts.api_objects.schedules import ScheduleObject, SchedulePage
from batchwright.starter.embedded_stack.temporal_server import find_binary
from tests.e2e.batches import check_conservation, ended, until
from tests.e2e.features.test_schedules import YEARLY, an_input, create, read, runs, schedules
from tests.e2e.stack import Stack
from tests.integration.starter.commands import batchwright

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

REASON = "the machines of the model are moved"


async def temporal(stack: Stack, command: str, *options: str) -> str:
    """Run `temporal schedule` with a command, and return its output."""
    server = ("--address", stack.now.temporal, "--namespace", stack.now.namespace)
    process = await asyncio.create_subprocess_exec(
        *(str(find_binary()), "schedule", command, *server, *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def read_all(answer: httpx.Response) -> list[ScheduleObject]:
    assert answer.is_success, answer.text
    return SchedulePage.model_validate_json(answer.content).data


async def state_of(stack: Stack, id: str) -> str:
    """Return the state of a schedule in the output of `batchwright schedules show`."""
    shown = await batchwright("schedules", "show", id, url=stack.now.api)
    assert shown.code == 0, shown.stderr
    return next(line.split()[1] for line in shown.stdout if line.startswith("state"))


async def test_a_schedule_that_is_paused_with_temporals_command_is_shown_as_paused_and_keeps_the_reason(
    stack: Stack,
) -> None:
    async with stack.client() as client, schedules(stack) as http:
        file_id, _ = await an_input(client)
        schedule = await create(http, file_id)
        path, one = f"/schedules/{schedule.id}", ("--schedule-id", schedule.id)

        async def is_listed() -> bool:
            """Return True if the list of the tenant's schedules has the schedule. It is a little late."""
            query = 'BatchwrightTenant = "default"'
            found = json.loads(await temporal(stack, "list", "--query", query, "--output", "json"))
            return schedule.id in [each["scheduleId"] for each in found]

        await until(is_listed)
        await temporal(stack, "toggle", *one, "--pause", "--reason", REASON)
        paused = read(await http.get(path))
        assert (paused.paused, paused.next_times) == (True, [])
        assert await state_of(stack, schedule.id) == "paused"
        table = (await batchwright("schedules", "list", url=stack.now.api)).stdout
        assert [schedule.id, "paused"] in [line.split()[:2] for line in table]
        for cron in ("30 3 1 7 *", YEARLY):
            changed = read(await http.patch(path, json={"cron": cron}))
            assert (changed.cron, changed.paused) == (cron, True)
        described = json.loads(await temporal(stack, "describe", *one, "--output", "json"))
        state = described["schedule"]["state"]
        note, _, change = state["notes"].partition("; ")
        assert (state["paused"], note, change.count("changed by its tenant")) == (True, REASON, 1)

        await temporal(stack, "toggle", *one, "--unpause", "--reason", "they are back")
        resumed = read(await http.get(path))
        assert (resumed.paused, resumed.next_times) == (False, schedule.next_times)
        assert await state_of(stack, schedule.id) == "active"
        assert (await http.delete(path)).is_success


async def test_a_trigger_with_temporals_command_creates_a_batch_also_while_the_schedule_is_paused(
    stack: Stack,
) -> None:
    async with stack.client() as client, schedules(stack) as http:
        file_id, lines = await an_input(client)
        schedule = await create(http, file_id)
        one = ("--schedule-id", schedule.id)
        await temporal(stack, "toggle", *one, "--pause")
        await temporal(stack, "trigger", *one)
        (run,) = (await runs(http, schedule.id, 1)).runs
        assert run.batch_id is not None
        batch = await ended(client, run.batch_id)
        assert batch.status == "completed"
        await check_conservation(client, batch, lines)
        shown = read(await http.get(f"/schedules/{schedule.id}"))
        assert (shown.paused, [each.status for each in shown.runs]) == (True, ["completed"])
        assert (await http.delete(f"/schedules/{schedule.id}")).is_success


async def test_a_schedule_that_was_replaced_and_deleted_in_temporal_runs_again_when_its_tenant_resumes_it(
    stack: Stack,
) -> None:
    async with stack.client() as client, schedules(stack) as http:
        file_id, lines = await an_input(client)
        schedule = await create(http, file_id)
        path, one = f"/schedules/{schedule.id}", ("--schedule-id", schedule.id)
        other = ("--cron", "0 6 * * *", "--workflow-id", "other", "--type", "Other", "--task-queue", "other")
        await temporal(stack, "update", *one, *other)
        replaced = read(await http.get(path))
        assert (replaced.cron, replaced.paused) == (YEARLY, False)
        assert {datetime.fromtimestamp(each, UTC).hour for each in replaced.next_times} == {6}

        await temporal(stack, "delete", *one)
        gone = read(await http.get(path))
        assert (gone.paused, gone.next_times) == (True, [])
        listed = read_all(await http.get("/schedules"))[0]
        assert (listed.id, listed.paused) == (schedule.id, True)
        refused = await http.post(f"{path}/trigger")
        assert (refused.status_code, "Resume it" in refused.json()["error"]["message"]) == (409, True)
        assert read(await http.patch(path, json={"cron": "30 3 1 7 *"})).paused
        assert read(await http.post(f"{path}/resume")).next_times != []
        await temporal(stack, "trigger", *one)
        (run,) = (await runs(http, schedule.id, 1)).runs
        assert run.batch_id is not None
        await check_conservation(client, await ended(client, run.batch_id), lines)
        await temporal(stack, "delete", *one)
        assert (await http.delete(path)).is_success
        assert (await http.get(path)).status_code == 404
