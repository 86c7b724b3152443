"""GET /admin/batches/{id}/slices combines what Temporal, the database and the storage know of the slices."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import pytest

from batchwright.api.dependencies import now
from batchwright.contracts.api_objects.operator import BatchSlicesObject
from batchwright.contracts.temporal_names import model_run_id
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.temporal_payloads.ingestion import IngestResult, ModelShare
from batchwright.contracts.terms import ActivityState
from batchwright.database.records import SliceProgress
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import StorageUnavailable
from batchwright.temporal import TemporalUnavailable
from batchwright.temporal.pending_activities import PendingActivity
from tests.fakes.api import ApiFixture, open_api, read

AT = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = int(AT.timestamp())


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


def activity(
    number: int | None, state: ActivityState = ActivityState.RUNNING, **changes: object
) -> PendingActivity:
    plain = PendingActivity("run_slice", number, state, "inference.llama", "pod-1", AT, 1, AT, None, "")
    return plain._replace(**changes)


async def running(api: ApiFixture, *slices: PendingActivity) -> str:
    """Create a batch of the tenant `red`, whose model has these slices that have not ended. Return its id."""
    batch = await api.create("red")
    models = [ModelCounts(model="llama", lines=100)]
    await api.database.batches.start("red", batch.id, total=100, models=models, at=now())
    share = ModelShare(model="llama", safe_model="llama", lines=100, slices=5)
    api.temporal.ingestions[batch.id] = IngestResult(ingest_prefix="p", models=[share], total=100)
    api.temporal.activities[model_run_id(batch.id, "llama")] = list(slices)
    return batch.id


async def shown(api: ApiFixture, batch_id: str) -> BatchSlicesObject:
    return read(await api.http.get(f"/admin/batches/{batch_id}/slices"), BatchSlicesObject)


async def test_a_slice_has_its_place_its_counts_and_its_segments(api: ApiFixture) -> None:
    batch_id = await running(api, activity(3))
    progress = SliceProgress(
        tenant="red",
        batch_id=batch_id,
        model="llama",
        number=3,
        generation=0,
        attempt=1,
        completed=7,
        failed=2,
    )
    await api.database.progress.record([progress])
    for number, segment in ((3, 0), (3, 1), (4, 0)):
        folder = object_keys.slice_results("red", batch_id, "llama", number)
        await api.storage.put(object_keys.segment(folder, 0, 1, "n", segment), b"results")
    (slice_,) = (await shown(api, batch_id)).data
    assert (slice_.model, slice_.number, slice_.state) == ("llama", 3, ActivityState.RUNNING)
    assert (slice_.worker, slice_.since, slice_.heartbeat_at) == ("pod-1", SECONDS, SECONDS)
    assert (slice_.completed, slice_.failed, slice_.segments) == (7, 2, 2)
    assert (slice_.attempts, slice_.next_attempt_at, slice_.last_failure) == (1, None, None)


async def test_slices_are_sorted_by_number_and_those_without_one_come_last(api: ApiFixture) -> None:
    queued = ActivityState.QUEUED
    numbers = (None, 2, 0, None)
    batch_id = await running(api, *(activity(number, queued, worker="") for number in numbers))
    data = (await shown(api, batch_id)).data
    assert [each.number for each in data] == [0, 2, None, None]
    assert [(each.worker, each.segments) for each in data] == [
        (None, 0),
        (None, 0),
        (None, None),
        (None, None),
    ]


async def test_the_slices_of_all_model_runs_of_a_model_are_shown_together(api: ApiFixture) -> None:
    batch_id = await running(api, activity(4), activity(1))
    api.temporal.activities[model_run_id(batch_id, "llama", 2)] = [activity(3)]
    api.temporal.activities[model_run_id(batch_id, "llama2")] = [activity(2)]
    assert [each.number for each in (await shown(api, batch_id)).data] == [1, 3, 4]


async def test_a_slice_that_waits_says_for_what_and_until_when(api: ApiFixture) -> None:
    waiting = activity(
        0, ActivityState.WAITING, attempt=4, next_attempt_at=AT, last_failure="no backend serves this model"
    )
    (slice_,) = (await shown(api, await running(api, waiting))).data
    assert (slice_.state, slice_.attempts, slice_.next_attempt_at) == (ActivityState.WAITING, 4, SECONDS)
    assert slice_.last_failure == "no backend serves this model"


async def test_the_open_steps_of_the_batch_itself_are_shown(api: ApiFixture) -> None:
    batch_id = await running(api)
    finalize = activity(None, name="finalize", queue="io", last_failure="storage is down", attempt=9)
    api.temporal.activities[batch_id] = [finalize]
    found = await shown(api, batch_id)
    assert [(each.step, each.queue, each.attempts, each.last_failure) for each in found.steps] == [
        ("finalize", "io", 9, "storage is down")
    ]
    assert found.data == []


async def test_without_storage_only_the_number_of_segments_is_missing(api: ApiFixture) -> None:
    batch_id = await running(api, activity(0))
    api.storage.failing = StorageUnavailable("down")
    (slice_,) = (await shown(api, batch_id)).data
    assert (slice_.number, slice_.segments) == (0, None)


async def test_before_its_input_is_read_a_batch_has_no_slices(api: ApiFixture) -> None:
    batch = await api.create("red")
    assert await shown(api, batch.id) == BatchSlicesObject(steps=[], data=[])


async def test_without_temporal_it_is_a_503(api: ApiFixture) -> None:
    batch_id = await running(api, activity(0))
    api.temporal.failing = TemporalUnavailable("down")
    assert (await api.http.get(f"/admin/batches/{batch_id}/slices")).status_code == 503
