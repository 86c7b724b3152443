"""Pause and resume of a batch."""

from collections.abc import AsyncGenerator

import pytest

from batchwright.api.temporal_gateway import RunMissing
from batchwright.contracts.api_objects.openai import (
    BatchObject,
)
from batchwright.contracts.temporal_names import CONTROL_QUEUE, IO_QUEUE, inference_queue
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.records import BatchOutcome
from batchwright.rules.ids import safe_name
from batchwright.rules.pause_limit import FREE_CHANGES
from batchwright.rules.worker_stats import polled_queue_stats
from batchwright.temporal import TemporalUnavailable
from batchwright.temporal.errors import TemporalOutcomeUnknown
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.tables.batches.batches import MemoryBatches
from tests.unit.api.routes.begun_batches import ENDS, NOW, begun, ended, pause, resume


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def test_pause_and_resume_reach_the_run(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    paused = read(await api.http.post(f"/v1/batches/{batch_id}/x/pause"), BatchObject)
    resumed = read(await api.http.post(f"/v1/batches/{batch_id}/x/resume"), BatchObject)
    assert (paused.x_batchwright.paused, resumed.x_batchwright.paused) == (True, False)
    assert api.temporal.signals == [(batch_id, "pause"), (batch_id, "resume")]


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
    count = MemoryBatches.claim_pause_or_resume

    async def count_after_the_end(table: MemoryBatches, tenant: str, batch_id: str, most: int) -> int | None:
        outcome = BatchOutcome(status=BatchStatus.COMPLETED, completed=10, failed=0, usage=Usage())
        await api.database.batch_ends.finish(tenant, batch_id, outcome, NOW)
        return await count(table, tenant, batch_id, most)

    monkeypatch.setattr(MemoryBatches, "claim_pause_or_resume", count_after_the_end)
    answer = await pause(api, batch_id)
    assert (answer.status_code, "with status 'completed'" in answer.text) == (409, True)
    assert api.temporal.signals == []


async def test_a_batch_that_ends_before_it_gets_its_pause_is_shown_as_ended(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = await begun(api, "llama")

    async def end_first(batch_id: str, change: int) -> None:
        outcome = BatchOutcome(status=BatchStatus.COMPLETED, completed=10, failed=0, usage=Usage())
        await api.database.batch_ends.finish("default", batch_id, outcome, NOW)
        raise RunMissing(batch_id)

    monkeypatch.setattr(api.temporal, "pause", end_first)
    answer = await pause(api, batch_id)
    assert (answer.status_code, "with status 'completed'" in answer.text) == (409, True)


async def test_changes_that_do_not_reach_temporal_are_not_counted(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    api.temporal.failing = TemporalUnavailable("down")
    for _ in range(FREE_CHANGES + 1):
        assert (await pause(api, batch_id)).status_code == 503
        assert (await resume(api, batch_id)).status_code == 503
    api.temporal.failing = TemporalOutcomeUnknown("it may have accepted the signal")
    assert (await pause(api, batch_id)).status_code == 503  # counts
    api.temporal.failing = None
    answers = [await pause(api, batch_id) for _ in range(FREE_CHANGES)]
    assert [answer.status_code for answer in answers] == [200] * (FREE_CHANGES - 1) + [429]


@pytest.mark.parametrize(("late", "shown"), [("pause", False), ("resume", True)])
async def test_of_a_pause_and_a_resume_at_the_same_time_the_later_one_is_shown(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch, late: str, shown: bool
) -> None:
    """The request `late` sends its signal to the workflow first, but records it last. The other request is
    handled completely in between.
    """
    batch_id = await begun(api, "llama")
    other = resume if late == "pause" else pause
    signal = getattr(api.temporal, late)

    async def signal_and_wait(batch_id: str, change: int) -> None:
        await signal(batch_id, change)
        assert (await other(api, batch_id)).status_code == 200

    with monkeypatch.context() as patch:
        patch.setattr(api.temporal, late, signal_and_wait)
        assert (await api.http.post(f"/v1/batches/{batch_id}/x/{late}")).status_code == 200
    batch = read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject)
    assert bool(batch.x_batchwright.paused) is shown


async def test_a_pause_that_is_not_allowed_on_an_ended_batch_is_not_counted(api: ApiFixture) -> None:
    batch_id = await ended(api, BatchStatus.COMPLETED)
    for _ in range(FREE_CHANGES + 1):
        assert (await pause(api, batch_id)).status_code == 409


@pytest.mark.parametrize("status", ENDS)
async def test_an_ended_batch_cannot_be_paused(api: ApiFixture, status: BatchStatus) -> None:
    answer = await api.http.post(f"/v1/batches/{await ended(api, status)}/x/pause")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")


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
