"""/v1/x/schedules: create, list, change, pause, trigger and delete schedules of batches."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from batchwright.contracts.api_objects.openai import FileObject
from batchwright.contracts.api_objects.schedules import (
    RunError,
    ScheduleObject,
    SchedulePage,
    ScheduleRunObject,
)
from batchwright.contracts.temporal_payloads.batch_schedules import OverlapPolicy, ScheduleSpec
from batchwright.database.tables.schedules import ScheduleRunRow
from batchwright.rules.ids import new_schedule_id
from batchwright.temporal import TemporalUnavailable
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.api_keys import create_key
from tests.fakes.batch_schedules import NEXT_TIME, StoredSchedule

SCHEDULES = "/v1/x/schedules"
BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "6h"}


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(max_schedules=3) as api:
        yield api


async def body(api: ApiFixture, **fields: object) -> dict[str, object]:
    file = await api.upload()
    return {"cron": "0 2 * * *", "batch": {**BATCH, "input_file_id": file.id}, **fields}


async def created(api: ApiFixture, **fields: object) -> ScheduleObject:
    return read(await api.http.post(SCHEDULES, json=await body(api, **fields)), ScheduleObject)


def stored(api: ApiFixture, id: str) -> StoredSchedule:
    return api.schedules.stored[id]


async def acted(api: ApiFixture, id: str, action: str) -> ScheduleObject:
    return read(await api.http.post(f"{SCHEDULES}/{id}/{action}"), ScheduleObject)


async def refused(api: ApiFixture, fields: Mapping[str, object]) -> tuple[str | None, str]:
    """Send a body that is not valid, and return the parameter and the message of the error."""
    answer = await api.http.post(SCHEDULES, json=fields)
    assert answer.status_code == 400
    assert api.database.rows.schedules == {}
    assert api.schedules.stored == {}
    error = error_of(answer)
    return error.param, error.message


async def test_a_schedule_is_created_in_the_database_and_in_temporal(api: ApiFixture) -> None:
    schedule = await created(api)
    assert (schedule.cron, schedule.time_zone, schedule.overlap) == ("0 2 * * *", "UTC", "skip")
    assert (schedule.paused, schedule.next_times, schedule.runs) == (False, [int(NEXT_TIME.timestamp())], [])
    assert (schedule.batch.endpoint, schedule.batch.completion_window) == (
        "/v1/chat/completions",
        "6h",
    )
    spec = stored(api, schedule.id).spec
    assert ScheduleSpec.model_validate(spec.model_dump()) == ScheduleSpec(
        tenant="default", id=schedule.id, cron="0 2 * * *", time_zone="UTC", overlap=OverlapPolicy.SKIP
    )
    assert api.temporal.orders == {}


async def test_all_fields_of_a_batch_are_kept(api: ApiFixture) -> None:
    file = await api.upload()
    batch = {
        **BATCH,
        "input_file_id": file.id,
        "metadata": {"run": "nightly"},
        "output_expires_after": {"anchor": "created_at", "seconds": 86_400},
        "x_batchwright": {
            "deduplicate": True,
            "priority": 5,
            "max_cost": "2.5",
            "output_location": None,
        },
    }
    schedule = await created(
        api, time_zone="Europe/Berlin", overlap="buffer_one", description="m", batch=batch
    )
    assert schedule.batch.model_dump(mode="json") == batch
    assert (schedule.time_zone, schedule.overlap, schedule.description) == (
        "Europe/Berlin",
        "buffer_one",
        "m",
    )
    shown = read(await api.http.get(f"{SCHEDULES}/{schedule.id}"), ScheduleObject)
    assert shown == schedule


@pytest.mark.parametrize("cron", ["", "daily", "61 * * * *", "0 2 13 * fri", "0 0 31 2 *", 5, None])
async def test_a_cron_form_that_is_none_is_refused(api: ApiFixture, cron: object) -> None:
    param, _ = await refused(api, await body(api, cron=cron))
    assert param == "cron"


@pytest.mark.parametrize("zone", ["", "Berlin/Nowhere", "Local", "a b", 64 * "Europe"])
async def test_an_unknown_time_zone_is_refused(api: ApiFixture, zone: str) -> None:
    param, message = await refused(api, await body(api, time_zone=zone))
    assert (param, "expected an IANA name" in message) == ("time_zone", True)


async def test_an_unknown_overlap_policy_is_refused(api: ApiFixture) -> None:
    param, message = await refused(api, await body(api, overlap="terminate_other"))
    assert (param, "'cancel_other'" in message) == ("overlap", True)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/nothing"}, "batch.endpoint"),
        ({"completion_window": "soon"}, "batch.completion_window"),
        ({"model": "llama"}, "batch.model"),
        ({"input_file_id": "file-0"}, "batch.input_file_id"),
        ({"input_file_id": f"file-{32 * '0'}"}, "batch.input_file_id"),
        ({"x_batchwright": {"start_at": 4_000_000_000}}, "batch.x_batchwright.start_at"),
        ({"x_batchwright": {"webhook": {"url": "https://8.8.8.8/"}}}, "batch.x_batchwright.webhook"),
        ({"x_batchwright": {"priority": 9}}, "batch.x_batchwright.priority"),
    ],
)
async def test_a_batch_that_cannot_be_created_is_refused(
    api: ApiFixture, change: dict[str, object], param: str
) -> None:
    file = await api.upload()
    fields = {"cron": "0 2 * * *", "batch": {**BATCH, "input_file_id": file.id, **change}}
    assert (await refused(api, fields))[0] == param


async def test_missing_and_unknown_fields_are_refused(api: ApiFixture) -> None:
    whole = await body(api)
    for name in ("cron", "batch"):
        assert (await refused(api, {key: whole[key] for key in whole if key != name}))[0] == name
    assert (await refused(api, {**whole, "every": "1h"}))[0] == "every"
    assert (await refused(api, {**whole, "batch": "file"}))[0] == "batch"


async def test_a_file_of_another_tenant_or_purpose_is_refused(api: ApiFixture) -> None:
    files = [await api.upload(tenant="other"), await api.upload(b"png", "vision")]
    for file in files:
        fields = {"cron": "0 2 * * *", "batch": {**BATCH, "input_file_id": file.id}}
        assert (await refused(api, fields))[0] == "batch.input_file_id"


async def test_a_tenant_has_a_limited_number_of_schedules(api: ApiFixture) -> None:
    for _ in range(3):
        await created(api)
    answer = await api.http.post(SCHEDULES, json=await body(api))
    assert (answer.status_code, answer.headers["x-should-retry"]) == (429, "false")
    assert "you may have at most 3" in error_of(answer).message


async def test_nothing_stays_if_temporal_does_not_answer(api: ApiFixture) -> None:
    fields = await body(api)
    api.schedules.failing = TemporalUnavailable("away")
    assert (await api.http.post(SCHEDULES, json=fields)).status_code == 503
    assert api.database.rows.schedules == {}


async def test_a_schedule_is_changed_and_keeps_what_the_change_does_not_name(api: ApiFixture) -> None:
    schedule = await created(api, description="mine")
    answer = await api.http.patch(
        f"{SCHEDULES}/{schedule.id}", json={"cron": "30 4 * * 1-5", "overlap": None}
    )
    changed = read(answer, ScheduleObject)
    assert changed == schedule.model_copy(update={"cron": "30 4 * * 1-5"})
    assert stored(api, schedule.id).spec.cron == "30 4 * * 1-5"
    for fields, param in (({"cron": "x"}, "cron"), ({"time_zone": "Nowhere/X"}, "time_zone")):
        answer = await api.http.patch(f"{SCHEDULES}/{schedule.id}", json=fields)
        assert (answer.status_code, error_of(answer).param) == (400, param)
    assert read(await api.http.get(f"{SCHEDULES}/{schedule.id}"), ScheduleObject) == changed


async def test_changes_at_the_same_moment_are_both_kept_in_both_places(api: ApiFixture) -> None:
    """Each of the two changes has read the schedule before the other one changed it."""
    schedule = await created(api)
    path, both = f"{SCHEDULES}/{schedule.id}", asyncio.Barrier(2)
    api.schedules.before_update = both.wait
    changes: tuple[dict[str, str], ...] = ({"cron": "0 5 * * *"}, {"overlap": "allow_all"})

    async def change(fields: dict[str, str]) -> None:
        read(await api.http.patch(path, json=fields), ScheduleObject)

    await asyncio.gather(*map(change, changes))
    changed = read(await api.http.get(path), ScheduleObject)
    assert (changed.cron, changed.overlap) == ("0 5 * * *", "allow_all")
    spec = stored(api, schedule.id).spec
    assert (spec.cron, spec.overlap) == ("0 5 * * *", "allow_all")


@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.parametrize("reaches_temporal", [False, True])
async def test_a_change_that_a_crash_has_interrupted_is_applied_when_the_schedule_is_read(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch, reaches_temporal: bool, is_listed: bool
) -> None:
    schedule = await created(api)
    path, update = f"{SCHEDULES}/{schedule.id}", api.schedules.update

    async def killed(spec: ScheduleSpec) -> None:
        if reaches_temporal:
            await update(spec)
        raise TemporalUnavailable("the process was killed")

    with monkeypatch.context() as patch:
        patch.setattr(api.schedules, "update", killed)
        assert (await api.http.patch(path, json={"cron": "0 5 * * *"})).status_code == 503
    if is_listed:
        [shown] = read(await api.http.get(SCHEDULES), SchedulePage).data
    else:
        shown = read(await api.http.get(path), ScheduleObject)
    assert (shown.cron, stored(api, schedule.id).spec.cron) == ("0 5 * * *", "0 5 * * *")


async def test_an_interrupted_change_to_an_unknown_time_zone_is_dropped(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = await created(api)
    path = f"{SCHEDULES}/{schedule.id}"
    with monkeypatch.context() as patch:
        patch.setattr(api.schedules, "failing", TemporalUnavailable("the process was killed"))
        change = {"cron": "0 5 * * *", "time_zone": "Berlin/Nowhere"}
        assert (await api.http.patch(path, json=change)).status_code == 503
    assert read(await api.http.get(path), ScheduleObject) == schedule
    spec = stored(api, schedule.id).spec
    assert (spec.cron, spec.time_zone) == ("0 2 * * *", "UTC")
    [row] = api.database.rows.schedules.values()
    assert row.pending is None


async def test_a_paused_schedule_stays_paused_when_it_is_changed(api: ApiFixture) -> None:
    schedule = await created(api)
    assert (await acted(api, schedule.id, "pause")).paused
    answer = await api.http.patch(f"{SCHEDULES}/{schedule.id}", json={"cron": "0 5 * * *"})
    changed = read(answer, ScheduleObject)
    assert (changed.paused, changed.next_times) == (True, [])
    assert not (await acted(api, schedule.id, "resume")).paused


async def test_a_trigger_starts_a_run_also_while_the_schedule_is_paused(api: ApiFixture) -> None:
    schedule = await created(api)
    await acted(api, schedule.id, "pause")
    await acted(api, schedule.id, "trigger")
    assert stored(api, schedule.id).triggers == 1


async def test_a_trigger_that_the_overlap_policy_would_skip_is_refused(api: ApiFixture) -> None:
    schedule = await created(api)
    stored(api, schedule.id).is_running = True
    answer = await api.http.post(f"{SCHEDULES}/{schedule.id}/trigger")
    assert (answer.status_code, "has not ended" in error_of(answer).message) == (409, True)
    await api.http.patch(f"{SCHEDULES}/{schedule.id}", json={"overlap": "buffer_one"})
    await acted(api, schedule.id, "trigger")
    assert stored(api, schedule.id).triggers == 1


async def test_a_schedule_that_temporal_does_not_know_is_paused_until_it_is_resumed(api: ApiFixture) -> None:
    """This happens if the API is killed after it inserted the row and before it created the schedule in
    Temporal.
    """
    schedule = await created(api)
    del api.schedules.stored[schedule.id]
    assert read(await api.http.get(f"{SCHEDULES}/{schedule.id}"), ScheduleObject).paused
    assert (await api.http.post(f"{SCHEDULES}/{schedule.id}/trigger")).status_code == 409
    assert (await acted(api, schedule.id, "pause")).paused
    await api.http.patch(f"{SCHEDULES}/{schedule.id}", json={"cron": "0 5 * * *"})
    assert not (await acted(api, schedule.id, "resume")).paused
    assert stored(api, schedule.id).spec.cron == "0 5 * * *"


async def test_a_schedule_shows_its_latest_runs_and_their_batches(api: ApiFixture) -> None:
    schedule, batch = await created(api), await api.create()
    due = datetime(2026, 12, 1, 2, tzinfo=UTC)
    made = ScheduleRunRow(id="1", scheduled_at=due, batch_id=batch.id)
    late = due + timedelta(days=1)
    refusal = ScheduleRunRow(id="2", scheduled_at=late, code="file_not_found", message="It was deleted.")
    for run in (made, refusal):
        await api.database.schedules.record_run("default", schedule.id, run)
    runs = read(await api.http.get(f"{SCHEDULES}/{schedule.id}"), ScheduleObject).runs
    error = RunError(code="file_not_found", message="It was deleted.")
    assert runs == [
        ScheduleRunObject(scheduled_at=int(late.timestamp()), batch_id=None, status=None, error=error),
        ScheduleRunObject(
            scheduled_at=int(due.timestamp()), batch_id=batch.id, status=batch.status, error=None
        ),
    ]


async def test_schedules_are_listed_in_pages(api: ApiFixture) -> None:
    ids = [(await created(api)).id for _ in range(3)]
    page = read(await api.http.get(f"{SCHEDULES}?limit=2"), SchedulePage)
    assert ([each.id for each in page.data], page.has_more) == (ids[:0:-1], True)
    rest = read(await api.http.get(f"{SCHEDULES}?limit=2&after={page.last_id}"), SchedulePage)
    assert ([each.id for each in rest.data], rest.has_more) == (ids[:1], False)
    for unknown in ("x", new_schedule_id()):
        assert (await api.http.get(f"{SCHEDULES}?after={unknown}")).status_code == 404


async def test_a_deleted_schedule_is_gone_in_both_places(api: ApiFixture) -> None:
    schedule = await created(api)
    api.schedules.failing = TemporalUnavailable("away")
    assert (await api.http.delete(f"{SCHEDULES}/{schedule.id}")).status_code == 503
    api.schedules.failing = None
    assert (await api.http.delete(f"{SCHEDULES}/{schedule.id}")).json()["deleted"] is True
    assert (api.database.rows.schedules, api.schedules.stored) == ({}, {})
    assert (await api.http.get(f"{SCHEDULES}/{schedule.id}")).status_code == 404


async def test_the_file_of_a_schedule_is_kept_after_its_expiry_and_can_be_deleted(api: ApiFixture) -> None:
    schedule = await created(api)
    id = schedule.batch.input_file_id
    rows = api.database.rows
    expired = rows.files["default", id].model_copy(update={"expires_at": datetime(2020, 1, 1, tzinfo=UTC)})
    rows.files["default", id] = expired
    assert read(await api.http.get(f"/v1/files/{id}"), FileObject).id == id
    assert (await api.http.delete(f"/v1/files/{id}")).status_code == 200


async def test_a_schedule_runs_with_the_key_that_changed_it_last() -> None:
    async with open_api(auth="api_key") as api:
        first, second = await create_key(api.database, "red"), await create_key(api.database, "red")
        headers = {"Authorization": f"Bearer {first.text}"}
        files = {"file": ("in.jsonl", b'{"custom_id": "a", "body": {}}\n')}
        uploaded = await api.http.post("/v1/files", files=files, data={"purpose": "batch"}, headers=headers)
        batch = {**BATCH, "input_file_id": read(uploaded, FileObject).id}
        made = await api.http.post(SCHEDULES, json={"cron": "0 2 * * *", "batch": batch}, headers=headers)
        id = read(made, ScheduleObject).id
        before = api.database.rows.schedules["red", id].template.caller.key_id
        headers = {"Authorization": f"Bearer {second.text}"}
        assert (await api.http.patch(f"{SCHEDULES}/{id}", json={}, headers=headers)).status_code == 200
        after = api.database.rows.schedules["red", id].template.caller.key_id
        rows = api.database.rows.api_keys
        assert (before, after) == tuple(rows[key.prefix].key.id for key in (first, second))


async def test_the_output_location_of_a_schedule_is_checked_and_kept() -> None:
    async with open_api(data_locations={"default": {"write": ["s3://out/blue/"]}}) as api:
        file = await api.upload()

        async def create(url: str) -> httpx.Response:
            batch = {**BATCH, "input_file_id": file.id, "x_batchwright": {"output_location": url}}
            return await api.http.post(SCHEDULES, json={"cron": "0 2 * * *", "batch": batch})

        refused = await create("s3://out/red/")
        assert (refused.status_code, error_of(refused).code) == (403, "location_not_allowed")
        assert error_of(refused).param == "batch.x_batchwright.output_location"
        schedule = read(await create("s3://out/blue/nightly"), ScheduleObject)
        assert schedule.batch.x_batchwright.output_location == "s3://out/blue/nightly"


async def test_a_schedule_may_name_an_object_that_its_tenant_may_read() -> None:
    async with open_api(data_locations={"default": {"read": ["s3://inputs/blue/"]}}) as api:

        async def create(url: str) -> httpx.Response:
            body = {"cron": "0 2 * * *", "batch": {**BATCH, "input_file_id": url}}
            return await api.http.post(SCHEDULES, json=body)

        for url in ("s3://inputs/red/a.jsonl", "s3://other/a.jsonl"):
            refused = await create(url)
            assert (refused.status_code, error_of(refused).code) == (403, "location_not_allowed")
            assert error_of(refused).param == "batch.input_file_id"
        invalid = await create("s3://inputs")
        assert (invalid.status_code, error_of(invalid).param) == (400, "batch.input_file_id")
        schedule = read(await create("s3://inputs/blue/a.jsonl"), ScheduleObject)
        assert schedule.batch.input_file_id == "s3://inputs/blue/a.jsonl"
        path = f"{SCHEDULES}/{schedule.id}"
        again = {**BATCH, "input_file_id": "s3://inputs/blue/b.jsonl"}
        changed = read(await api.http.patch(path, json={"batch": again}), ScheduleObject)
        assert changed.batch.input_file_id == "s3://inputs/blue/b.jsonl"
        again["input_file_id"] = "s3://inputs/red/a.jsonl"
        assert (await api.http.patch(path, json={"batch": again})).status_code == 403
