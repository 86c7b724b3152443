"""/admin/batches: list with filters, counts, get, cancel, pause, resume, priority, abandon."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from batchwright.api.dependencies import now
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.operator import BatchCountsObject, OperatorBatch, OperatorBatchPage
from batchwright.contracts.temporal_payloads.batch import BatchForecast, BatchState, ModelCounts, WindowFit
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.records import BatchOutcome
from batchwright.rules.tenants.scopes import Scope
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.api_keys import create_key
from tests.fakes.tables.batches.custom_ids import part_of


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def running(api: ApiFixture, tenant: str, model: str = "llama") -> str:
    """Create a batch that is in progress, and return its id."""
    batch = await api.create(tenant)
    models = [ModelCounts(model=model, lines=1)]
    assert await api.database.batches.start(tenant, batch.id, total=1, models=models, at=now())
    return batch.id


async def completed(api: ApiFixture, tenant: str) -> str:
    batch = await api.create(tenant)
    outcome = BatchOutcome(status=BatchStatus.COMPLETED, completed=1, failed=0, usage=Usage())
    await api.database.batch_ends.finish(tenant, batch.id, outcome, now())
    return batch.id


async def listed(api: ApiFixture, **query: str) -> list[str]:
    """Return the ids in the list with these query parameters."""
    page = read(await api.http.get("/admin/batches", params=query), OperatorBatchPage)
    return [batch.id for batch in page.data]


def forecast(api: ApiFixture, tenant: str, batch_id: str, window: WindowFit) -> None:
    made = BatchForecast(
        made_at=now(), window=window, p50_seconds=60, p90_seconds=90, lines_per_second=1, lines_ahead=0
    )
    api.database.rows.forecasts[tenant, batch_id] = made


async def test_the_list_shows_the_batches_of_all_tenants_with_their_tenant_newest_first(
    api: ApiFixture,
) -> None:
    first, second = await api.create("red"), await api.create("blue")
    page = read(await api.http.get("/admin/batches"), OperatorBatchPage)
    assert [(batch.id, batch.tenant) for batch in page.data] == [(second.id, "blue"), (first.id, "red")]
    assert (page.first_id, page.last_id, page.has_more) == (second.id, first.id, False)


async def test_a_page_continues_after_the_last_batch_of_the_page_before(api: ApiFixture) -> None:
    ids = [(await api.create(tenant)).id for tenant in ("red", "blue", "red")]
    page = read(await api.http.get("/admin/batches?limit=2"), OperatorBatchPage)
    assert ([batch.id for batch in page.data], page.has_more) == ([ids[2], ids[1]], True)
    assert await listed(api, after=ids[1]) == [ids[0]]
    assert await listed(api, order="asc", after=ids[1]) == [ids[2]]


async def test_filters_select_by_tenant_status_and_model(api: ApiFixture) -> None:
    red, blue = await running(api, "red"), await running(api, "blue", "other")
    done, waiting = await completed(api, "red"), (await api.create("blue")).id
    assert await listed(api, tenant="red") == [done, red]
    assert await listed(api, status="in_progress", order="asc") == [red, blue]
    assert await listed(api, status="live", order="asc") == [red, blue, waiting]
    assert await listed(api, status="completed") == [done]
    assert await listed(api, model="other") == [blue]
    assert await listed(api, tenant="red", model="other") == []


async def test_a_batch_with_a_cancel_request_is_listed_as_cancelling(api: ApiFixture) -> None:
    red = await running(api, "red")
    await api.http.post(f"/admin/batches/{red}/cancel")
    assert await listed(api, status="cancelling") == [red]
    assert await listed(api, status="in_progress") == []


async def test_batches_at_risk_are_found_by_their_forecast(api: ApiFixture) -> None:
    red, blue, _ = await running(api, "red"), await running(api, "blue"), await running(api, "blue")
    forecast(api, "red", red, WindowFit.AT_RISK)
    forecast(api, "blue", blue, WindowFit.LATE)
    assert await listed(api, forecast="at_risk") == [red]
    page = read(await api.http.get("/admin/batches?forecast=late"), OperatorBatchPage)
    assert [batch.forecast and batch.forecast.window for batch in page.data] == [WindowFit.LATE]
    counts = read(await api.http.get("/admin/batches/counts"), BatchCountsObject)
    assert (counts.at_risk, counts.late) == (1, 1)
    assert [(each.tenant, each.at_risk, each.late) for each in counts.tenants] == [
        ("blue", 0, 1),
        ("red", 1, 0),
    ]


async def test_a_forecast_that_is_too_old_does_not_count(api: ApiFixture) -> None:
    red = await running(api, "red")
    forecast(api, "red", red, WindowFit.LATE)
    made = api.database.rows.forecasts["red", red]
    old = made.model_copy(update={"made_at": made.made_at - timedelta(minutes=2)})
    api.database.rows.forecasts["red", red] = old
    assert await listed(api, forecast="late") == []
    assert read(await api.http.get("/admin/batches/counts"), BatchCountsObject).late == 0


async def test_counts_are_by_status_and_by_tenant(api: ApiFixture) -> None:
    first = await api.create("red")
    await running(api, "red")
    await completed(api, "blue")
    counts = read(await api.http.get("/admin/batches/counts"), BatchCountsObject)
    assert counts.statuses == {
        BatchStatus.VALIDATING: 1,
        BatchStatus.IN_PROGRESS: 1,
        BatchStatus.COMPLETED: 1,
    }
    assert counts.oldest_created_at == first.created_at
    assert [(each.tenant, each.statuses, each.oldest_created_at) for each in counts.tenants] == [
        ("blue", {BatchStatus.COMPLETED: 1}, None),
        ("red", {BatchStatus.VALIDATING: 1, BatchStatus.IN_PROGRESS: 1}, first.created_at),
    ]


async def test_batches_that_ended_more_than_a_day_ago_are_not_counted(api: ApiFixture) -> None:
    done = await completed(api, "red")
    row = api.database.rows.batches["red", done]
    old = row.model_copy(update={"completed_at": now() - timedelta(days=2)})
    api.database.rows.batches["red", done] = old
    counts = read(await api.http.get("/admin/batches/counts"), BatchCountsObject)
    assert (counts.statuses, counts.tenants) == ({}, [])


async def test_a_batch_is_retrieved_as_its_tenant_sees_it(api: ApiFixture) -> None:
    red = await running(api, "red")
    seen = read(await api.http.get(f"/v1/batches/{red}", headers={"X-Tenant": "red"}), BatchObject)
    found = read(await api.http.get(f"/admin/batches/{red}"), OperatorBatch)
    assert found == OperatorBatch(**dict(seen), tenant="red")


async def test_the_list_shows_operators_which_batches_are_paused(api: ApiFixture) -> None:
    red, blue = (await api.create("red")).id, (await api.create("blue")).id
    await api.http.post(f"/admin/batches/{red}/pause")
    page = read(await api.http.get("/admin/batches"), OperatorBatchPage)
    paused = {batch.id: (batch.tenant, batch.x_batchwright.paused) for batch in page.data}
    assert paused == {red: ("red", True), blue: ("blue", False)}
    assert any(each.reason == "paused" for batch in page.data if batch.id == red for each in batch.waiting)


async def test_an_operator_pauses_and_resumes_a_batch_of_any_tenant(api: ApiFixture) -> None:
    red = await running(api, "red")
    assert read(await api.http.post(f"/admin/batches/{red}/pause"), OperatorBatch).x_batchwright.paused
    assert read(await api.http.get(f"/admin/batches/{red}"), OperatorBatch).x_batchwright.paused
    resumed = read(await api.http.post(f"/admin/batches/{red}/resume"), OperatorBatch)
    assert (resumed.tenant, resumed.x_batchwright.paused) == ("red", False)
    assert api.temporal.signals == [(red, "pause"), (red, "resume")]


async def test_an_operator_cancels_a_batch_of_any_tenant(api: ApiFixture) -> None:
    red = await running(api, "red")
    cancelled = read(await api.http.post(f"/admin/batches/{red}/cancel"), OperatorBatch)
    assert (cancelled.tenant, cancelled.status) == ("red", BatchStatus.CANCELLING)
    assert api.temporal.signals == [(red, "cancel")]


async def test_the_files_of_a_batch_are_abandoned_while_they_are_written(api: ApiFixture) -> None:
    red = await running(api, "red")
    await api.database.batches.start_finalizing("red", red, now())
    shown = read(await api.http.post(f"/admin/batches/{red}/abandon"), OperatorBatch)
    assert (shown.tenant, shown.status) == ("red", BatchStatus.FINALIZING)
    later = now() + timedelta(hours=1)
    blue = await running(api, "blue")
    await api.database.batch_ends.end_without_files(
        "blue", blue, BatchStatus.EXPIRED, [], now(), files_until=later
    )
    read(await api.http.post(f"/admin/batches/{blue}/abandon"), OperatorBatch)
    assert api.temporal.signals == [(red, "abandon"), (blue, "abandon")]


async def test_the_files_of_a_batch_are_abandoned_before_a_worker_begins_to_write_them(
    api: ApiFixture,
) -> None:
    red = await running(api, "red")
    api.temporal.states[red] = BatchState(status=BatchStatus.FINALIZING)
    read(await api.http.post(f"/admin/batches/{red}/abandon"), OperatorBatch)
    assert api.temporal.signals == [(red, "abandon")]


async def test_a_batch_whose_files_are_not_being_written_is_not_abandoned(api: ApiFixture) -> None:
    red, done = await running(api, "red"), await completed(api, "red")
    other = await running(api, "red")
    api.temporal.states[other] = BatchState(status=BatchStatus.IN_PROGRESS)
    assert (await api.http.post(f"/admin/batches/{other}/abandon")).status_code == 409
    refused = [await api.http.post(f"/admin/batches/{id}/abandon") for id in (red, done)]
    assert [answer.status_code for answer in refused] == [409, 409]
    assert [error_of(answer).message for answer in refused] == [
        "Cannot abandon the files of a batch with status 'in_progress': they are not being written. "
        "Cancel it to end it.",
        "Cannot abandon the files of a batch with status 'completed': they are not being written.",
    ]
    assert api.temporal.signals == []


async def test_an_operator_changes_the_priority_of_a_live_batch(
    api: ApiFixture, caplog: pytest.LogCaptureFixture
) -> None:
    red = await running(api, "red")
    with caplog.at_level("INFO"):
        changed = await api.http.post(f"/admin/batches/{red}/priority", json={"priority": 5})
    assert read(changed, OperatorBatch).x_batchwright.priority == 5
    seen = read(await api.http.get(f"/v1/batches/{red}", headers={"X-Tenant": "red"}), BatchObject)
    assert seen.x_batchwright.priority == 5
    (entry,) = (e for e in caplog.records if e.getMessage() == "batch priority changed by an operator")
    fields = vars(entry)
    assert (fields["batch_id"], fields["of_tenant"], fields["before"], fields["priority"]) == (
        red,
        "red",
        3,
        5,
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [({}, "priority"), ({"priority": 6}, "priority"), ({"priority": "5"}, "priority"), ({"prio": 5}, "prio")],
)
async def test_a_wrong_priority_is_a_400_and_changes_nothing(
    api: ApiFixture, body: dict[str, object], param: str
) -> None:
    red = await running(api, "red")
    answer = await api.http.post(f"/admin/batches/{red}/priority", json=body)
    assert (answer.status_code, error_of(answer).param) == (400, param)
    assert api.database.rows.batches["red", red].order.priority == 3


async def test_a_batch_that_has_ended_or_is_cancelled_keeps_its_priority(api: ApiFixture) -> None:
    done, red = await completed(api, "red"), await running(api, "red")
    await api.http.post(f"/admin/batches/{red}/cancel")
    for batch_id, status in ((done, "completed"), (red, "cancelling")):
        refused = await api.http.post(f"/admin/batches/{batch_id}/priority", json={"priority": 1})
        assert refused.status_code == 409
        assert f"with status '{status}'" in error_of(refused).message


@pytest.mark.parametrize("action", ["cancel", "pause", "resume"])
async def test_a_batch_that_has_ended_is_not_changed(api: ApiFixture, action: str) -> None:
    done = await completed(api, "red")
    refused = await api.http.post(f"/admin/batches/{done}/{action}")
    assert refused.status_code == 409
    assert error_of(refused).message == f"Cannot {action} a batch with status 'completed'."


@pytest.mark.parametrize(
    "call",
    ["GET ", "GET /slices", "POST /cancel", "POST /pause", "POST /resume", "POST /priority", "POST /abandon"],
)
@pytest.mark.parametrize("batch_id", ["batch_01a20d7774b6755488a512e95eb779be", "batch_1", "%00"])
async def test_an_unknown_batch_is_a_404(api: ApiFixture, call: str, batch_id: str) -> None:
    method, _, path = call.partition(" ")
    answer = await api.http.request(method, f"/admin/batches/{batch_id}{path}")
    assert answer.status_code == 404
    assert "No batch found with id" in error_of(answer).message


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("status=done", "status"),
        ("forecast=bad", "forecast"),
        ("order=up", "order"),
        ("limit=0", "limit"),
        ("tenant=%00", "tenant"),
        ("model=a%00", "model"),
        ("state=live", "state"),
    ],
)
async def test_a_wrong_filter_is_a_400_that_names_it(api: ApiFixture, query: str, param: str) -> None:
    answer = await api.http.get(f"/admin/batches?{query}")
    assert (answer.status_code, error_of(answer).param) == (400, param)


async def test_a_cursor_that_is_no_batch_id_is_a_404(api: ApiFixture) -> None:
    assert (await api.http.get("/admin/batches?after=x")).status_code == 404
    assert (await api.http.get(f"/admin/batches?after=batch_{0:032}")).status_code == 404


async def test_every_action_is_logged_with_the_key_of_the_operator(caplog: pytest.LogCaptureFixture) -> None:
    async with open_api(auth="api_key") as api:
        owner = await create_key(api.database, "red")
        operator = await create_key(api.database, "ops", scopes=[Scope.ADMIN])
        client = api.openai.with_options(api_key=owner.text)
        file = await client.files.create(
            file=("in.jsonl", b'{"custom_id": "a", "body": {}}\n'), purpose="batch"
        )
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        with caplog.at_level("INFO"):
            for action in ("pause", "resume", "cancel"):
                headers = {"Authorization": f"Bearer {operator.text}"}
                answer = await api.http.post(f"/admin/batches/{batch.id}/{action}", headers=headers)
                assert answer.status_code == 200
        (stored,) = (row.key for row in api.database.rows.api_keys.values() if row.key.tenant == "ops")
        entries = [
            (entry.getMessage(), vars(entry)["of_tenant"], vars(entry)["operator"])
            for entry in caplog.records
            if entry.name == "batchwright.api.routes.admin.batches"
        ]
    assert entries == [
        (f"batch {done} by an operator", "red", stored.id) for done in ("paused", "resumed", "cancelled")
    ]


async def test_operators_find_the_batches_of_a_line_of_any_tenant(api: ApiFixture) -> None:
    red, blue, other = await running(api, "red"), await running(api, "blue"), await running(api, "red")
    for tenant, batch_id, custom_id in (("red", red, "a"), ("blue", blue, "a"), ("red", other, "b")):
        await api.database.custom_ids.store(tenant, batch_id, 0, part_of(custom_id))
    assert await listed(api, custom_id="a") == [blue, red]
    assert await listed(api, custom_id="a", order="asc") == [red, blue]
    assert await listed(api, custom_id="a", tenant="blue", status="live", model="llama") == [blue]
    assert await listed(api, custom_id="a", after=blue) == [red]
    assert await listed(api, custom_id="a", model="other") == await listed(api, custom_id="c") == []
    refused = await api.http.get("/admin/batches", params={"custom_id": ""})
    assert (refused.status_code, error_of(refused).param) == (400, "custom_id")
