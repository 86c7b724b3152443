"""/v1/batches after creation: get, list, cancel, pause, resume, state."""

from collections.abc import AsyncGenerator, Collection
from datetime import UTC, datetime, timedelta

import httpx
import openai
import pytest

from batchwright.contracts.api_objects.openai import (
    BatchObject,
    BatchPage,
    ForecastObject,
    StartForecastObject,
    WaitingObject,
)
from batchwright.contracts.temporal_names import CONTROL_QUEUE, DISPATCH_QUEUE, IO_QUEUE, inference_queue
from batchwright.contracts.temporal_payloads.batch import (
    BatchForecast,
    BatchState,
    ModelCounts,
    StartFit,
    StartForecast,
    WaitingReason,
    WindowFit,
)
from batchwright.contracts.terms import BatchStatus, Usage, ValidationError
from batchwright.database.records import BatchOutcome
from batchwright.database.tables.batches.waiting_reasons import WaitingRow, WaitingSource
from batchwright.database.tables.operations.forecasts import ForecastRow
from batchwright.rules.ids import safe_name
from batchwright.rules.pause_limit import FREE_CHANGES
from batchwright.rules.worker_stats import polled_queue_stats, unpolled_reason
from batchwright.temporal import TemporalUnavailable
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.tables.batches.batches import MemoryBatches

ENDS = [status for status in BatchStatus if status.is_terminal]
NOW = datetime.now(UTC)


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def begun(api: ApiFixture, *models: str) -> str:
    """Create a batch in progress with ten lines for each model, and return its id."""
    batch = await api.create()
    counts = [ModelCounts(model=model, lines=10) for model in models]
    await api.database.batches.start("default", batch.id, total=10 * len(models), models=counts, at=NOW)
    return batch.id


async def ended(api: ApiFixture, status: BatchStatus) -> str:
    batch_id = await begun(api, "llama")
    outcome = BatchOutcome(status=status, completed=8, failed=2, usage=Usage(input_tokens=5, output_tokens=7))
    await api.database.batch_ends.finish("default", batch_id, outcome, NOW)
    return batch_id


async def test_a_batch_of_one_model_names_it_and_one_of_several_does_not(api: ApiFixture) -> None:
    one = await api.openai.batches.retrieve(await begun(api, "llama"))
    two = await api.openai.batches.retrieve(await begun(api, "llama", "qwen"))
    assert (one.model, two.model) == ("llama", None)


async def test_a_live_batch_shows_its_progress_per_model(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama", "qwen")
    batch = read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject)
    assert [(model.model, model.lines) for model in batch.x_batchwright.models] == [
        ("llama", 10),
        ("qwen", 10),
    ]
    assert batch.request_counts.total == 20


async def test_an_ended_batch_shows_counts_and_tokens(api: ApiFixture) -> None:
    batch = await api.openai.batches.retrieve(await ended(api, BatchStatus.COMPLETED))
    assert batch.status == "completed"
    assert batch.completed_at is not None
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (8, 2)
    assert batch.usage is not None
    assert (batch.usage.input_tokens, batch.usage.output_tokens, batch.usage.total_tokens) == (5, 7, 12)


async def test_validation_errors_are_listed_with_their_lines(api: ApiFixture) -> None:
    batch = await api.create()
    errors = [ValidationError(code="invalid_json_line", message="This line is not JSON.", line=3)]
    await api.database.batch_ends.fail_validation("default", batch.id, errors=errors, total=3, at=NOW)
    failed = await api.openai.batches.retrieve(batch.id)
    assert failed.errors is not None
    assert failed.errors.object == "list"
    assert [(error.code, error.line, error.param) for error in failed.errors.data or []] == [
        ("invalid_json_line", 3, None)
    ]


@pytest.mark.parametrize("batch_id", ["batch_" + "0" * 32, "batch_x", "%00", "x" * 2000])
async def test_an_unknown_batch_is_not_found(api: ApiFixture, batch_id: str) -> None:
    for path in ("", "/cancel", "/x/pause"):
        method = "POST" if path else "GET"
        answer = await api.http.request(method, f"/v1/batches/{batch_id}{path}")
        assert answer.status_code == 404
        assert error_of(answer).message.startswith("No batch found with id '")


async def test_a_batch_of_another_tenant_does_not_exist(api: ApiFixture) -> None:
    batch = await api.create(tenant="blue")
    red = {"X-Tenant": "red"}
    path = f"/v1/batches/{batch.id}"
    answers = [
        await api.http.get(path, headers=red),
        await api.http.post(f"{path}/cancel", headers=red),
        await api.http.post(f"{path}/x/pause", headers=red),
        await api.http.get("/v1/batches", params={"after": batch.id}, headers=red),
    ]
    assert [answer.status_code for answer in answers] == [404] * 4
    assert read(await api.http.get("/v1/batches", headers=red), BatchPage).data == []
    assert api.temporal.signals == []


async def test_a_list_is_paged_from_the_newest(api: ApiFixture) -> None:
    batch_ids = [(await api.create()).id for _ in range(5)]
    listed = [batch.id async for batch in api.openai.batches.list(limit=2)]
    first = read(await api.http.get("/v1/batches", params={"limit": 2}), BatchPage)
    assert listed == batch_ids[::-1]
    assert (first.first_id, first.last_id, first.has_more) == (batch_ids[4], batch_ids[3], True)


async def test_a_list_contains_the_batches_that_meet_all_filters(api: ApiFixture) -> None:
    tagged = await api.create(metadata={"run": "7", "team": "search"})
    await api.create(metadata={"run": "8", "team": "search"})
    await api.create()

    async def listed(**query: str) -> list[str]:
        page = read(await api.http.get("/v1/batches", params=query), BatchPage)
        return [batch.id for batch in page.data]

    assert len(await listed(**{"metadata[team]": "search"})) == 2
    assert await listed(**{"metadata[team]": "search", "metadata[run]": "7"}) == [tagged.id]
    assert len(await listed(status="validating")) == 3
    assert await listed(status="completed") == await listed(model="llama") == []
    assert len(await listed(created_after=str(tagged.created_at))) == 3
    assert await listed(created_before=str(tagged.created_at)) == []


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ({"status": "done"}, "status", "invalid_value"),
        ({"created_after": "yesterday"}, "created_after", "invalid_type"),
        ({"created_before": "9" * 18}, "created_before", "invalid_value"),
        ({"metadata": "run"}, "metadata", "invalid_value"),
        ({"custom_id": ""}, "custom_id", "invalid_value"),
        ({"custom_id": "x" * 1025}, "custom_id", "invalid_value"),
    ],
)
async def test_a_wrong_filter_is_refused_by_name(
    api: ApiFixture, query: dict[str, str], param: str, code: str
) -> None:
    answer = await api.http.get("/v1/batches", params=query)
    assert (answer.status_code, error_of(answer).param, error_of(answer).code) == (400, param, code)


async def test_an_empty_list_has_no_first_and_last_id(api: ApiFixture) -> None:
    page = read(await api.http.get("/v1/batches"), BatchPage)
    assert page == BatchPage(data=[], first_id=None, last_id=None, has_more=False)


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ("0", "integer_below_min_value"),
        ("-1", "integer_below_min_value"),
        ("101", "integer_above_max_value"),
        ("ten", "invalid_type"),
        ("", "invalid_type"),
        ("9" * 5000, "invalid_type"),
    ],
)
async def test_a_wrong_limit_is_refused(api: ApiFixture, limit: str, code: str) -> None:
    answer = await api.http.get("/v1/batches", params={"limit": limit})
    assert (answer.status_code, error_of(answer).code, error_of(answer).param) == (400, code, "limit")


@pytest.mark.parametrize("after", ["batch_" + "0" * 32, "x\x00"])
async def test_a_list_after_an_unknown_batch_is_not_found(api: ApiFixture, after: str) -> None:
    assert (await api.http.get("/v1/batches", params={"after": after})).status_code == 404


async def test_a_cancel_is_signalled_and_shown_at_once(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    batch = await api.openai.batches.cancel(batch_id)
    assert (batch.status, batch.cancelled_at) == ("cancelling", None)
    assert batch.cancelling_at is not None
    assert api.temporal.signals == [(batch_id, "cancel")]


async def test_a_cancel_that_temporal_did_not_accept_is_not_shown(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    api.temporal.failing = TemporalUnavailable("down")
    assert (await api.http.post(f"/v1/batches/{batch_id}/cancel")).status_code == 503
    assert (await api.openai.batches.retrieve(batch_id)).status == "in_progress"


async def test_a_second_cancel_changes_nothing(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    first = await api.openai.batches.cancel(batch_id)
    assert await api.openai.batches.cancel(batch_id) == first
    assert len(api.temporal.signals) == 1


async def test_a_cancel_of_a_cancelled_batch_returns_the_batch(api: ApiFixture) -> None:
    batch = await api.openai.batches.cancel(await ended(api, BatchStatus.CANCELLED))
    assert batch.status == "cancelled"
    assert api.temporal.signals == []


@pytest.mark.parametrize("status", [status for status in ENDS if status is not BatchStatus.CANCELLED])
async def test_a_batch_that_ended_another_way_cannot_be_cancelled(
    api: ApiFixture, status: BatchStatus
) -> None:
    client = api.openai.with_options(max_retries=3)
    with pytest.raises(openai.ConflictError) as refused:
        await client.batches.cancel(await ended(api, status))
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert f"Cannot cancel a batch with status '{status}'." in refused.value.message


async def test_a_batch_that_ended_while_it_was_cancelled_is_shown_as_ended(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = await begun(api, "llama")

    async def end_first(_: str) -> None:
        outcome = BatchOutcome(status=BatchStatus.COMPLETED, completed=10, failed=0, usage=Usage())
        await api.database.batch_ends.finish("default", batch_id, outcome, NOW)

    monkeypatch.setattr(api.temporal, "cancel", end_first)
    answer = await api.http.post(f"/v1/batches/{batch_id}/cancel")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")


async def test_a_live_batch_without_a_run_is_a_server_error(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    api.temporal.orders.clear()
    answer = await api.http.post(f"/v1/batches/{batch_id}/cancel")
    assert (answer.status_code, error_of(answer).code) == (500, "run_missing")
    assert "After an operator has run `batchwright consistency --repair`" in error_of(answer).message


async def test_pause_and_resume_reach_the_run(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    paused = read(await api.http.post(f"/v1/batches/{batch_id}/x/pause"), BatchObject)
    resumed = read(await api.http.post(f"/v1/batches/{batch_id}/x/resume"), BatchObject)
    assert (paused.x_batchwright.paused, resumed.x_batchwright.paused) == (True, False)
    assert api.temporal.signals == [(batch_id, "pause"), (batch_id, "resume")]


async def pause(api: ApiFixture, batch_id: str) -> httpx.Response:
    return await api.http.post(f"/v1/batches/{batch_id}/x/pause")


async def resume(api: ApiFixture, batch_id: str) -> httpx.Response:
    return await api.http.post(f"/v1/batches/{batch_id}/x/resume")


async def test_a_batch_that_is_paused_and_resumed_too_often_is_left_alone(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    for _ in range(FREE_CHANGES // 2):
        assert (await pause(api, batch_id)).status_code == 200
        assert (await resume(api, batch_id)).status_code == 200
    for refused in (await pause(api, batch_id), await resume(api, batch_id)):
        assert (refused.status_code, error_of(refused).code) == (429, "rate_limit_exceeded")
        assert 0 < int(refused.headers["Retry-After"]) <= 173
        assert f"in {refused.headers['Retry-After']} s" in error_of(refused).message
    assert len(api.temporal.signals) == FREE_CHANGES
    assert read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright.paused is False


async def test_a_batch_that_was_paused_too_often_can_be_cancelled(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    answers = [await pause(api, batch_id) for _ in range(FREE_CHANGES + 1)]
    assert answers[-1].status_code == 429
    assert (await api.openai.batches.cancel(batch_id)).status == "cancelling"


async def test_a_batch_that_ends_while_a_pause_is_checked_was_not_paused_too_often(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = await begun(api, "llama")
    count = MemoryBatches.count_change

    async def count_after_the_end(table: MemoryBatches, tenant: str, batch_id: str, most: int) -> bool:
        outcome = BatchOutcome(status=BatchStatus.COMPLETED, completed=10, failed=0, usage=Usage())
        await api.database.batch_ends.finish(tenant, batch_id, outcome, NOW)
        return await count(table, tenant, batch_id, most)

    monkeypatch.setattr(MemoryBatches, "count_change", count_after_the_end)
    answer = await pause(api, batch_id)
    assert (answer.status_code, "with status 'completed'" in answer.text) == (409, True)
    assert api.temporal.signals == []


async def test_a_pause_that_is_not_allowed_on_an_ended_batch_is_not_counted(api: ApiFixture) -> None:
    batch_id = await ended(api, BatchStatus.COMPLETED)
    for _ in range(FREE_CHANGES + 1):
        assert (await pause(api, batch_id)).status_code == 409


@pytest.mark.parametrize("status", ENDS)
async def test_an_ended_batch_cannot_be_paused(api: ApiFixture, status: BatchStatus) -> None:
    answer = await api.http.post(f"/v1/batches/{await ended(api, status)}/x/pause")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")


async def test_a_batch_shows_its_waiting_reason_and_since_when(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    now = datetime.now(UTC)
    await api.database.workers.record_heartbeat("one:1", polled_queue_stats([CONTROL_QUEUE, IO_QUEUE]))
    row = WaitingRow(
        tenant="default",
        batch_id=batch_id,
        model="llama",
        source=WaitingSource.WORKER,
        reason="the backend accepts no requests now: it answered 503",
        since=now,
        until=now + timedelta(seconds=60),
    )
    await api.database.waiting.report(row)
    found = read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright
    assert found.waiting == [
        WaitingObject(model="llama", reason=row.reason, since=int(now.timestamp())),
        WaitingObject(model="llama", reason=unpolled_reason(inference_queue(safe_name("llama")))),
    ]
    assert found.paused is False


async def report_reason(api: ApiFixture, tenant: str, batch_id: str, reason: str) -> None:
    now = datetime.now(UTC)
    row = WaitingRow(
        tenant=tenant,
        batch_id=batch_id,
        model="llama",
        source=WaitingSource.WORKER,
        reason=reason,
        since=now,
        until=now + timedelta(seconds=60),
    )
    await api.database.waiting.report(row)


async def test_a_list_shows_the_pauses_and_waiting_reasons_of_its_batches_with_one_query(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [CONTROL_QUEUE, IO_QUEUE, inference_queue(safe_name("llama"))]
    await api.database.workers.record_heartbeat("one:1", polled_queue_stats(queues))
    running, waits, paused = [await begun(api, "llama") for _ in range(3)]
    await ended(api, BatchStatus.COMPLETED)
    await report_reason(api, "default", waits, "the backend accepts no requests now")
    await report_reason(api, "other", running, "a reason of another tenant")
    await api.http.post(f"/v1/batches/{paused}/x/pause")
    await store_forecast(api, paused, timedelta(0))
    calls, read_reasons = list[int](), api.database.waiting.of_batches

    async def counted(batches: Collection[tuple[str, str]], at: datetime) -> list[WaitingRow]:
        calls.append(len(batches))
        return await read_reasons(batches, at)

    monkeypatch.setattr(api.database.waiting, "of_batches", counted)
    page = read(await api.http.get("/v1/batches"), BatchPage)
    reasons = {
        batch.id: [each.reason for each in batch.waiting]
        for batch in page.data
        if not batch.status.is_terminal
    }
    assert reasons == {running: [], waits: ["the backend accepts no requests now"], paused: ["paused"]}
    assert [batch.x_batchwright.paused for batch in page.data] == [None, True, False, False]
    assert page.data[1].forecast is None
    assert calls == [3]


async def test_a_list_of_ended_batches_reads_no_waiting_reasons(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ended(api, BatchStatus.COMPLETED)
    monkeypatch.delattr(type(api.database.waiting), "of_batches")
    [batch] = read(await api.http.get("/v1/batches"), BatchPage).data
    assert batch.x_batchwright.waiting is None


async def forecast_of(api: ApiFixture, batch_id: str) -> ForecastObject | None:
    return read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright.forecast


async def store_forecast(api: ApiFixture, batch_id: str, age: timedelta) -> None:
    made_at = datetime.now(UTC) - age
    forecast = BatchForecast(
        made_at=made_at,
        lines_per_second=2.5,
        lines_ahead=70,
        p50_seconds=10_000,
        p90_seconds=20_000,
        window=WindowFit.AT_RISK,
    )
    await api.database.forecasts.publish([ForecastRow("default", batch_id, forecast)], made_at)


async def test_a_batch_shows_its_forecast_as_seen_from_now(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    assert await forecast_of(api, batch_id) is None
    await store_forecast(api, batch_id, timedelta(seconds=20))
    found = await forecast_of(api, batch_id)
    assert found is not None
    assert (found.window, found.lines_per_second, found.lines_ahead) == (WindowFit.AT_RISK, 2.5, 70)
    assert 9900 < found.remaining_seconds_p50 <= 9981
    assert 19_900 < found.remaining_seconds_p90 <= 19_981


async def test_a_list_of_batches_shows_their_forecasts(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    await store_forecast(api, batch_id, timedelta(seconds=20))
    [listed] = read(await api.http.get("/v1/batches"), BatchPage).data
    assert listed.forecast == await forecast_of(api, batch_id)


async def test_an_old_forecast_is_not_shown(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    await store_forecast(api, batch_id, timedelta(minutes=2))
    assert await forecast_of(api, batch_id) is None


async def test_the_forecast_made_before_a_batch_began_stays_in_it_and_in_lists(api: ApiFixture) -> None:
    batch = await api.create()
    assert batch.start_forecast is None
    forecast = StartForecast(
        made_at=NOW,
        window=StartFit.AT_RISK,
        p50_seconds=100.4,
        p90_seconds=200.6,
        soonest_seconds=50.0,
        lines_ahead=7,
    )
    await api.database.forecasts.record_start("default", batch.id, forecast)
    expected = StartForecastObject(
        window=StartFit.AT_RISK, seconds_p50=100, seconds_p90=201, lines_ahead=7, made_at=int(NOW.timestamp())
    )
    await api.database.batch_ends.end_without_files("default", batch.id, BatchStatus.FAILED, [], NOW)
    assert read(await api.http.get(f"/v1/batches/{batch.id}"), BatchObject).start_forecast == expected
    [listed] = read(await api.http.get("/v1/batches"), BatchPage).data
    assert listed.start_forecast == expected


@pytest.mark.parametrize("call", ["x/pause", "cancel"])
async def test_a_paused_or_cancelled_batch_has_no_forecast(api: ApiFixture, call: str) -> None:
    batch_id = await begun(api, "llama")
    await store_forecast(api, batch_id, timedelta(seconds=1))
    await api.http.post(f"/v1/batches/{batch_id}/{call}")
    assert await forecast_of(api, batch_id) is None


async def test_a_batch_without_any_worker_shows_this_reason(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    waiting = read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright.waiting
    assert waiting is not None
    assert [(each.model, each.reason.split(":")[0]) for each in waiting] == [
        (None, "no worker polls its queue control"),
        (None, "no worker polls its queue io"),
        ("llama", f"no worker polls its queue {inference_queue(safe_name('llama'))}"),
    ]


async def test_models_that_share_a_rate_wait_for_a_worker_of_the_queue_that_they_share(
    api: ApiFixture,
) -> None:
    await api.http.put("/admin/rates", json={"model": None, "requests_per_second": 5})
    batch_id = await begun(api, "llama", "qwen")
    await api.database.workers.record_heartbeat("one:1", polled_queue_stats([CONTROL_QUEUE, IO_QUEUE]))
    waiting = read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright.waiting
    assert waiting == [
        WaitingObject(model=model, reason=unpolled_reason(DISPATCH_QUEUE)) for model in ("llama", "qwen")
    ]


async def test_a_shared_queue_with_a_poller_is_not_a_waiting_reason(api: ApiFixture) -> None:
    await api.http.put("/admin/rates", json={"model": None, "requests_per_second": 5})
    batch_id = await begun(api, "llama")
    queues = [CONTROL_QUEUE, IO_QUEUE, DISPATCH_QUEUE]
    await api.database.workers.record_heartbeat("one:1", polled_queue_stats(queues))
    waiting = read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright.waiting
    assert waiting in ([], None)


async def test_a_paused_batch_shows_the_pause_until_it_is_resumed(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    queues = [CONTROL_QUEUE, IO_QUEUE, inference_queue(safe_name("llama"))]
    await api.database.workers.record_heartbeat("one:1", polled_queue_stats(queues))
    await api.http.post(f"/v1/batches/{batch_id}/x/pause")
    paused = read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright
    await api.http.post(f"/v1/batches/{batch_id}/x/resume")
    resumed = read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright
    assert paused.waiting is not None
    assert [each.reason for each in paused.waiting] == ["paused"]
    assert (paused.paused, resumed.paused, resumed.waiting) == (True, False, [])


@pytest.mark.parametrize("status", ENDS)
async def test_an_ended_batch_has_no_waiting_reason(api: ApiFixture, status: BatchStatus) -> None:
    answer = await api.http.get(f"/v1/batches/{await ended(api, status)}")
    assert read(answer, BatchObject).x_batchwright.waiting is None


async def test_the_workflow_state_has_the_waiting_reason(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    reason = WaitingReason(model="llama", reason="circuit open: 429")
    api.temporal.states[batch_id] = BatchState(status=BatchStatus.IN_PROGRESS, paused=True, waiting=[reason])
    state = read(await api.http.get(f"/v1/batches/{batch_id}/x/state"), BatchState)
    assert state == api.temporal.states[batch_id]


async def test_a_state_query_without_an_answer_is_repeated(api: ApiFixture) -> None:
    answer = await api.http.get(f"/v1/batches/{await begun(api, 'llama')}/x/state")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
