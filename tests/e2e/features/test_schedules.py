"""Schedules of a running stack, with Temporal's own schedules, and batches that start later."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from openai.types import Batch
from temporalio.api.workflowservice.v1 import UpdateScheduleRequest, UpdateScheduleResponse
from temporalio.client import Client, ScheduleBackfill

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.schedules import ScheduleObject
from batchwright.contracts.temporal_payloads.batch_schedules import OverlapPolicy, ScheduleSpec
from batchwright.settings import load
from batchwright.temporal.batch_schedules import TemporalBatchSchedules
from tests.clients import http_client
from tests.e2e.batches import CHAT, chat_lines, check_conservation, ended, submit, until
from tests.e2e.stack import MODELS, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
YEARLY = "30 2 1 7 *"  # so that only triggers start runs
SOON = timedelta(seconds=15)  # still to come when a busy API checks it


@asynccontextmanager
async def schedules(stack: Stack) -> AsyncGenerator[httpx.AsyncClient]:
    async with http_client(base_url=stack.now.api + "/v1/x") as http:
        yield http


def read(answer: httpx.Response) -> ScheduleObject:
    assert answer.is_success, answer.text
    return ScheduleObject.model_validate_json(answer.content)


async def create(http: httpx.AsyncClient, file_id: str, **fields: object) -> ScheduleObject:
    batch = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "1h"}
    return read(await http.post("/schedules", json={"cron": YEARLY, "batch": batch, **fields}))


async def an_input(client: AsyncOpenAI) -> tuple[str, list[dict[str, object]]]:
    """Run a batch, and return the id of its input file, and its lines."""
    lines = chat_lines(MODELS[:1], each=5)
    batch = await ended(client, (await submit(client, lines)).id)
    return batch.input_file_id, lines


async def runs(http: httpx.AsyncClient, id: str, count: int) -> ScheduleObject:
    """Wait until a schedule has this number of runs, and return the schedule."""
    found: list[ScheduleObject] = []

    async def has_run() -> bool:
        found.append(read(await http.get(f"/schedules/{id}")))
        return len(found[-1].runs) == count

    await until(has_run)
    return found[-1]


async def test_a_trigger_creates_a_batch_and_the_schedule_shows_how_it_ended(stack: Stack) -> None:
    async with stack.client() as client, schedules(stack) as http:
        file_id, lines = await an_input(client)
        schedule = await create(http, file_id, time_zone="Europe/Berlin")
        (first, second) = [datetime.fromtimestamp(each, UTC) for each in schedule.next_times[:2]]
        assert (first.month, first.day, first.hour, first.minute) == (7, 1, 0, 30)
        assert second.year == first.year + 1
        await http.post(f"/schedules/{schedule.id}/trigger")
        (run,) = (await runs(http, schedule.id, 1)).runs
        assert run.batch_id is not None
        batch = await ended(client, run.batch_id)
        assert batch.status == "completed"
        await check_conservation(client, batch, lines)
        (run,) = read(await http.get(f"/schedules/{schedule.id}")).runs
        assert (run.batch_id, run.status) == (batch.id, "completed")
        await client.files.delete(file_id)

        async def is_over() -> bool:
            """Trigger the schedule. Return True if the trigger is accepted, which requires that the last run
            has ended.

            A run ends a little later than its batch.
            """
            return (await http.post(f"/schedules/{schedule.id}/trigger")).is_success

        await until(is_over)
        refused = (await runs(http, schedule.id, 2)).runs[0]
        assert refused.error is not None
        assert (refused.batch_id, refused.error.code) == (None, "file_not_found")
        assert (await http.delete(f"/schedules/{schedule.id}")).is_success


async def test_a_time_of_the_cron_form_creates_a_batch(stack: Stack) -> None:
    """The test makes Temporal run the schedule for a past time of its cron expression, as if that time were
    now.
    """
    async with stack.client() as client, schedules(stack) as http:
        file_id, lines = await an_input(client)
        schedule = await create(http, file_id, time_zone="Europe/Berlin")
        due = datetime(2026, 7, 1, 0, 30, tzinfo=UTC)  # 02:30 in Berlin
        hour = ScheduleBackfill(start_at=due - timedelta(minutes=30), end_at=due + timedelta(minutes=30))
        await (await stack.server()).get_schedule_handle(schedule.id).backfill(hour)
        (run,) = (await runs(http, schedule.id, 1)).runs
        assert run.scheduled_at == int(due.timestamp())
        assert run.batch_id is not None
        batch = await ended(client, run.batch_id)
        assert batch.status == "completed"
        await check_conservation(client, batch, lines)
        assert (await http.delete(f"/schedules/{schedule.id}")).is_success


async def test_overlap_policies_are_about_batches(stack: Stack) -> None:
    """A batch of the schedule is running. With `skip`, another trigger is refused. With `cancel_other`, it
    cancels the batch.
    """
    async with (
        stack.client() as client,
        schedules(stack) as http,
        stack.backend.hold(MODELS[0]),
    ):
        file = await client.files.create(file=("in.jsonl", _content(MODELS[0])), purpose="batch")
        schedule = await create(http, file.id)
        await http.post(f"/schedules/{schedule.id}/trigger")
        (first,) = (await runs(http, schedule.id, 1)).runs
        assert (await http.post(f"/schedules/{schedule.id}/trigger")).status_code == 409
        read(await http.patch(f"/schedules/{schedule.id}", json={"overlap": "cancel_other"}))
        read(await http.post(f"/schedules/{schedule.id}/trigger"))
        latest = (await runs(http, schedule.id, 2)).runs
        assert first.batch_id is not None
        assert latest[1].batch_id == first.batch_id
        assert (await ended(client, first.batch_id)).status == "cancelled"
        assert (await http.delete(f"/schedules/{schedule.id}")).is_success
        assert latest[0].batch_id is not None
        await client.batches.cancel(latest[0].batch_id)
        assert (await ended(client, latest[0].batch_id)).status == "cancelled"


async def test_a_schedule_is_changed_and_paused_in_temporal(stack: Stack) -> None:
    async with stack.client() as client, schedules(stack) as http:
        file = await client.files.create(file=("in.jsonl", _content(MODELS[0])), purpose="batch")
        for zone in ("Nowhere/Land", "Europe/Atlantis"):
            fields = {
                "cron": YEARLY,
                "time_zone": zone,
                "batch": {"input_file_id": file.id, "endpoint": CHAT},
            }
            refused = await http.post("/schedules", json=fields)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "time_zone")
        schedule = await create(http, file.id)
        refused = await http.patch(f"/schedules/{schedule.id}", json={"time_zone": "Europe/Atlantis"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "time_zone")
        paused = read(await http.post(f"/schedules/{schedule.id}/pause"))
        assert (paused.paused, paused.next_times) == (True, [])
        server = await stack.server()
        handle = server.get_schedule_handle(schedule.id)
        assert (await handle.describe()).schedule.state.paused
        changed = read(await http.patch(f"/schedules/{schedule.id}", json={"cron": "*/10 8 * * mon-fri"}))
        assert changed.paused
        spec = ScheduleSpec(
            tenant="default",
            id=schedule.id,
            cron="*/10 8 * * mon-fri",
            time_zone="UTC",
            overlap=OverlapPolicy.BUFFER_ONE,
        )
        resumed = read(await http.post(f"/schedules/{schedule.id}/resume"))
        await _change_while_it_is_paused(server, spec)
        description = (await handle.describe()).schedule
        assert (description.state.paused, description.policy.overlap.name) == (True, "BUFFER_ONE")
        times = [datetime.fromtimestamp(each, UTC) for each in resumed.next_times]
        assert {each.hour for each in times} == {8}
        assert {each.minute % 10 for each in times} == {0}
        assert all(each.weekday() < 5 for each in times)
        assert (await http.delete(f"/schedules/{schedule.id}")).is_success

        async def is_gone() -> bool:
            return schedule.id not in [each.id async for each in await server.list_schedules()]

        await until(is_gone)


async def _change_while_it_is_paused(server: Client, spec: ScheduleSpec) -> None:
    """Change a schedule that another client pauses just before the change reaches Temporal."""
    schedules, service, updates = TemporalBatchSchedules(server, load()), server.workflow_service, 0
    send = service.update_schedule

    async def late(request: UpdateScheduleRequest, **options: Any) -> UpdateScheduleResponse:
        nonlocal updates
        updates += 1
        if updates == 1:
            await schedules.pause(spec.id)
        return await send(request, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "update_schedule", late)
        await schedules.update(spec)
    assert updates == 2


async def test_a_batch_starts_at_its_time_though_it_is_paused_and_resumed_before(stack: Stack) -> None:
    async with (
        stack.client() as client,
        http_client(base_url=stack.now.api) as http,
        stack.backend.hold(MODELS[0]) as hold,  # on a slow machine, it has not ended before it is paused
    ):
        file = await client.files.create(file=("in.jsonl", _content(MODELS[0])), purpose="batch")
        now = datetime.now(UTC)
        early = await _later(client, file.id, now + SOON)
        for action in ("pause", "resume"):
            (await http.post(f"/v1/batches/{early.id}/x/{action}")).raise_for_status()
        await hold.release()
        dropped = await _later(client, file.id, now + timedelta(hours=1))
        shown = BatchObject.model_validate_json((await http.get(f"/v1/batches/{dropped.id}")).content)
        assert (shown.status, [each.reason for each in shown.waiting]) == ("validating", ["scheduled"])
        await client.batches.cancel(dropped.id)
        cancelled = await ended(client, dropped.id)
        assert (cancelled.status, cancelled.in_progress_at) == ("cancelled", None)
        done = await ended(client, early.id)
        assert (done.status, done.in_progress_at is not None) == ("completed", True)
        assert (done.in_progress_at or 0) >= int((now + SOON).timestamp())


async def test_a_batch_that_starts_later_is_shown_and_listed_at_once_and_starts_by_itself(
    stack: Stack,
) -> None:
    async with stack.client("later") as client, http_client(base_url=stack.now.api) as http:
        http.headers["X-Tenant"] = "later"
        content = _content(MODELS[0])
        file = await client.files.create(file=("in.jsonl", content), purpose="batch")
        # A slow machine also shows this batch before it starts.
        start = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        later = await _later(client, file.id, start)
        retrieved = await http.get(f"/v1/batches/{later.id}")
        listed = (await http.get("/v1/batches")).json()["data"]
        assert retrieved.status_code == 200
        assert [each["id"] for each in listed] == [later.id]
        for text in (retrieved.text, json.dumps(listed[0])):
            shown = BatchObject.model_validate_json(text)
            assert (shown.status, shown.in_progress_at) == ("validating", None)
            assert shown.x_batchwright.start_at == int(start.timestamp())
            assert shown.expires_at == int((start + timedelta(hours=24)).timestamp())
        await client.batches.cancel(later.id)
        start = datetime.now(UTC) + SOON
        batch = await _later(client, file.id, start)
        assert batch.in_progress_at is None
        done = await ended(client, batch.id)
        assert (done.status, done.in_progress_at is not None) == ("completed", True)
        assert (done.in_progress_at or 0) >= int(start.timestamp())
        await check_conservation(client, done, [json.loads(line) for line in content.splitlines()])


async def _later(client: AsyncOpenAI, file_id: str, start: datetime) -> Batch:
    return await client.batches.create(
        input_file_id=file_id,
        endpoint=CHAT,
        completion_window="24h",
        extra_body={"x_batchwright": {"start_at": start.isoformat()}},
    )


def _content(model: str) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in chat_lines([model], each=3)).encode()
