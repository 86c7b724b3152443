"""x/retry and x/resume that a crash of the API has interrupted, and that are repeated."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.temporal_payloads.batch import BatchOrder, RerunKind
from batchwright.temporal import TemporalUnavailable
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.unit.api.services.batches.rerun_requests import ask, created, ended, ended_without_files


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


@pytest.mark.parametrize("kind", RerunKind)
async def test_an_interrupted_rerun_is_finished_by_the_next_call(api: ApiFixture, kind: RerunKind) -> None:
    first = await ended(api)
    batch = read(await ask(api, first, kind), BatchObject)
    del api.database.rows.batches["default", batch.id], api.temporal.orders[batch.id]
    again = read(await ask(api, first, kind), BatchObject)
    assert again.id == batch.id
    assert batch.id in api.temporal.orders


def interrupt(api: ApiFixture, source_id: str, kind: RerunKind, age: timedelta) -> BatchOrder:
    """Change the data as if the API had crashed `age` ago: the rerun was recorded, but its batch was not
    started.

    Return the recorded argument of the batch's workflow.
    """
    key = "default", source_id, kind
    claimed = api.database.rows.reruns[key]
    times = {"created_at": claimed.created_at - age, "deadline": claimed.deadline - age}
    old = api.database.rows.reruns[key] = claimed.model_copy(update=times)
    del api.database.rows.batches["default", old.batch_id], api.temporal.orders[old.batch_id]
    return old


@pytest.mark.parametrize("kind", RerunKind)
async def test_an_interrupted_rerun_that_continues_hours_later_has_its_whole_window(
    api: ApiFixture, kind: RerunKind
) -> None:
    first = await ended(api)
    read(await ask(api, first, kind), BatchObject)
    old = interrupt(api, first, kind, timedelta(hours=4))
    before = datetime.now(UTC).replace(microsecond=0)
    batch = read(await ask(api, first, kind), BatchObject)
    order = api.order(old.batch_id)
    assert order.created_at >= before
    assert order.deadline - order.created_at == timedelta(hours=3)
    assert order.origin == old.origin
    shown = batch.created_at, batch.expires_at
    assert shown == (order.created_at.timestamp(), order.deadline.timestamp())


@pytest.mark.parametrize("kind", RerunKind)
async def test_a_rerun_that_runs_without_a_row_keeps_its_window(api: ApiFixture, kind: RerunKind) -> None:
    first = await ended(api)
    read(await ask(api, first, kind), BatchObject)
    old = interrupt(api, first, kind, timedelta(hours=1))
    api.temporal.orders[old.batch_id] = old
    api.temporal.open.add(old.batch_id)
    batch = read(await ask(api, first, kind), BatchObject)
    assert (batch.id, batch.expires_at) == (old.batch_id, old.deadline.timestamp())


@pytest.mark.parametrize("kind", RerunKind)
async def test_the_row_of_a_rerun_has_the_window_with_which_another_call_has_started_it(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch, kind: RerunKind
) -> None:
    first = await ended(api)
    read(await ask(api, first, kind), BatchObject)
    old, start = interrupt(api, first, kind, timedelta(hours=1)), api.temporal.start

    async def start_second(order: BatchOrder) -> bool:
        assert await start(old)
        api.temporal.open.add(old.batch_id)
        return await start(order)

    monkeypatch.setattr(api.temporal, "start", start_second)
    batch = read(await ask(api, first, kind), BatchObject)
    assert (batch.id, batch.expires_at) == (old.batch_id, old.deadline.timestamp())


async def test_an_interrupted_resumption_keeps_the_results_for_its_new_window(api: ApiFixture) -> None:
    source = await ended_without_files(api)
    read(await ask(api, source, "resume"), BatchObject)
    old = interrupt(api, source, RerunKind.RESUME, timedelta(hours=1))
    read(await ask(api, source, "resume"), BatchObject)
    row = await api.database.batches.get("default", source)
    assert row is not None
    assert row.results_kept_until == api.order(old.batch_id).deadline


async def test_an_interrupted_resumption_that_the_quota_refuses_does_not_keep_the_results_longer() -> None:
    async with open_api(max_live_batches=1) as api:
        source = await ended_without_files(api)
        read(await ask(api, source, "resume"), BatchObject)
        old = interrupt(api, source, RerunKind.RESUME, timedelta(hours=1))
        await api.database.admissions.release("default", old.batch_id)  # as if it had expired
        await created(api)
        row = api.database.rows.batches["default", source]
        kept = row.model_copy(update={"results_kept_until": old.deadline})
        api.database.rows.batches["default", source] = kept
        assert (await ask(api, source, "resume")).status_code == 429
        assert await api.database.batches.get("default", source) == kept


async def test_an_interrupted_resumption_whose_results_are_gone_is_refused(api: ApiFixture) -> None:
    source = await ended_without_files(api)
    read(await ask(api, source, "resume"), BatchObject)
    old = interrupt(api, source, RerunKind.RESUME, timedelta(days=1))
    row = api.database.rows.batches["default", source]
    gone = row.model_copy(update={"results_kept_until": old.deadline})
    api.database.rows.batches["default", source] = gone
    error = error_of(answer := await ask(api, source, "resume"))
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert "its results are no longer kept" in error.message
    assert old.batch_id not in api.temporal.orders


@pytest.mark.parametrize("kind", RerunKind)
async def test_interrupted_reruns_that_continue_do_not_exceed_the_quota(kind: RerunKind) -> None:
    async with open_api(max_live_batches=1) as api:
        batches = [await ended(api) for _ in range(2)]
        api.temporal.failing = TemporalUnavailable("down")
        assert [(await ask(api, batch, kind)).status_code for batch in batches] == [503, 503]
        api.temporal.failing = None
        assert [(await ask(api, batch, kind)).status_code for batch in batches] == [200, 429]
