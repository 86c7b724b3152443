"""Waiting reasons of batches, in a batch, in lists and in the state of its workflow."""

from collections.abc import AsyncGenerator, Collection
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.api_objects.openai import (
    BatchObject,
    BatchPage,
    WaitingObject,
)
from batchwright.contracts.temporal_names import CONTROL_QUEUE, DISPATCH_QUEUE, IO_QUEUE, inference_queue
from batchwright.contracts.temporal_payloads.batch import (
    BatchState,
    WaitingReason,
)
from batchwright.contracts.terms import BatchStatus
from batchwright.database.tables.batches.waiting_reasons import WaitingRow, WaitingSource
from batchwright.rules.ids import safe_name
from batchwright.rules.worker_stats import polled_queue_stats, unpolled_reason
from tests.fakes.api import ApiFixture, open_api, read
from tests.unit.api.routes.begun_batches import ENDS, begun, ended, store_forecast


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


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
