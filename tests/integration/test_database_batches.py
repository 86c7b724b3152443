"""What every database promises of batches and their moves; `any_database` runs it on each."""

from datetime import timedelta

import pytest

from batchwright.contracts.batch import BatchPolicy
from batchwright.contracts.openai import BatchStatus, Endpoint, Profile, ValidationError
from batchwright.database.base import DatabaseLike
from batchwright.database.errors import UnknownBatch, UnknownCursor
from batchwright.database.rows import BatchRow
from tests.integration.rows import MODELS, START, a_running_batch, after, an_order

ERRORS = [
    ValidationError(code="invalid_json_line", message="This line is not parseable.", line=3),
    ValidationError(code="invalid_type", message="\0 and ü are what clients write", param="custom_id"),
]


async def test_a_new_batch_is_validating_and_holds_its_whole_order(any_database: DatabaseLike) -> None:
    order = an_order(
        endpoint=Endpoint.EMBEDDINGS,
        metadata={"k": "v", "ü": "\0 \\u0000 '"},
        output_expires_after_seconds=3600,
        weight=0.3,
        priority=5,
        policy=BatchPolicy(profile=Profile.STRICT, slice_seconds=0.1),
    )
    row = BatchRow(order=order, status=BatchStatus.VALIDATING)
    assert await any_database.batches.upsert(order) == row
    assert await any_database.batches.get("t", "batch_1") == row


@pytest.mark.parametrize("metadata", [None, {}])
async def test_no_metadata_and_empty_metadata_stay_apart(
    any_database: DatabaseLike, metadata: dict[str, str] | None
) -> None:
    row = await any_database.batches.upsert(an_order(metadata=metadata))
    assert row.order.metadata == metadata


async def test_a_second_upsert_returns_the_row_as_it_is(any_database: DatabaseLike) -> None:
    running = await a_running_batch(any_database)
    assert await any_database.batches.upsert(an_order(weight=9.0)) == running


async def test_beginning_sets_total_models_and_time(any_database: DatabaseLike) -> None:
    row = await a_running_batch(any_database)
    assert row == BatchRow(
        order=an_order(),
        status=BatchStatus.IN_PROGRESS,
        in_progress_at=after(10),
        models=MODELS,
        total=10,
        failed=1,
    )


async def test_validation_fails_with_its_errors(any_database: DatabaseLike) -> None:
    await any_database.batches.upsert(an_order())
    assert await any_database.batches.fail_validation("t", "batch_1", errors=ERRORS, total=4, at=after(5))
    assert await any_database.batches.get("t", "batch_1") == BatchRow(
        order=an_order(), status=BatchStatus.FAILED, failed_at=after(5), errors=ERRORS, total=4
    )


async def test_finalizing_follows_progress(any_database: DatabaseLike) -> None:
    running = await a_running_batch(any_database)
    assert await any_database.batches.start_finalizing("t", "batch_1", after(20))
    assert await any_database.batches.get("t", "batch_1") == running.model_copy(
        update={"status": BatchStatus.FINALIZING, "finalizing_at": after(20)}
    )


async def test_a_move_from_another_status_moves_nothing(any_database: DatabaseLike) -> None:
    batches = any_database.batches
    await batches.upsert(an_order())
    assert not await batches.start_finalizing("t", "batch_1", after(1))
    assert await batches.begin("t", "batch_1", total=1, models=[], at=after(1))
    before = await batches.get("t", "batch_1")
    assert not await batches.begin("t", "batch_1", total=2, models=MODELS, at=after(2))
    assert not await batches.fail_validation("t", "batch_1", errors=ERRORS, total=2, at=after(2))
    assert await batches.get("t", "batch_1") == before


async def test_a_move_of_no_row_moves_nothing(any_database: DatabaseLike) -> None:
    batches = any_database.batches
    assert not await batches.begin("t", "batch_1", total=1, models=[], at=START)
    assert not await batches.fail_validation("t", "batch_1", errors=[], total=1, at=START)
    assert not await batches.start_finalizing("t", "batch_1", START)
    assert await batches.note_cancel("t", "batch_1", START) is None
    with pytest.raises(UnknownBatch, match="batch_1"):
        await batches.end("t", "batch_1", BatchStatus.FAILED, [], START)


async def test_another_tenants_batch_is_unknown_and_cannot_be_moved(any_database: DatabaseLike) -> None:
    batches = any_database.batches
    row = await batches.upsert(an_order())
    assert await batches.get("other", "batch_1") is None
    assert await batches.page("other", limit=5, after=None) == ([], False)
    with pytest.raises(UnknownCursor):
        await batches.page("other", limit=5, after="batch_1")
    assert await batches.count_live("other") == 0
    assert await batches.note_cancel("other", "batch_1", START) is None
    assert not await batches.begin("other", "batch_1", total=1, models=[], at=START)
    with pytest.raises(UnknownBatch):
        await batches.end("other", "batch_1", BatchStatus.FAILED, [], START)
    assert await batches.get("t", "batch_1") == row


@pytest.mark.parametrize("batch_id", ["", "batch_\0", "\ud800"])
async def test_ids_nobody_gave_are_unknown(any_database: DatabaseLike, batch_id: str) -> None:
    assert await any_database.batches.get("t", batch_id) is None
    assert await any_database.batches.note_cancel("t", batch_id, START) is None
    with pytest.raises(UnknownCursor):
        await any_database.batches.page("t", limit=5, after=batch_id)


async def test_a_cancel_is_noted_once(any_database: DatabaseLike) -> None:
    running = await a_running_batch(any_database)
    noted = running.model_copy(update={"cancel_requested_at": after(30)})
    assert await any_database.batches.note_cancel("t", "batch_1", after(30)) == noted
    assert await any_database.batches.note_cancel("t", "batch_1", after(40)) == noted


async def test_a_cancel_of_an_ended_batch_changes_nothing(any_database: DatabaseLike) -> None:
    await a_running_batch(any_database)
    ended = await any_database.batches.end("t", "batch_1", BatchStatus.EXPIRED, [], after(30))
    assert await any_database.batches.note_cancel("t", "batch_1", after(40)) == ended


async def test_times_never_decrease_whatever_the_clocks_say(any_database: DatabaseLike) -> None:
    batches = any_database.batches
    await batches.upsert(an_order())
    await batches.begin("t", "batch_1", total=1, models=[], at=after(-100))
    await batches.note_cancel("t", "batch_1", after(50))
    await batches.start_finalizing("t", "batch_1", after(40))
    row = await batches.end("t", "batch_1", BatchStatus.CANCELLED, [], after(30))
    times = (row.in_progress_at, row.cancel_requested_at, row.finalizing_at, row.cancelled_at)
    assert times == (START, after(50), after(50), after(50))


async def test_only_live_batches_of_the_tenant_are_counted(any_database: DatabaseLike) -> None:
    await any_database.batches.upsert(an_order("batch_1"))
    await a_running_batch(any_database, "batch_2")
    await a_running_batch(any_database, "batch_3")
    await any_database.batches.start_finalizing("t", "batch_3", after(20))
    await any_database.batches.upsert(an_order("batch_4"))
    await any_database.batches.end("t", "batch_4", BatchStatus.CANCELLED, [], after(1))
    await any_database.batches.upsert(an_order("batch_5", tenant="other"))
    assert await any_database.batches.count_live("t") == 3


async def test_pages_are_newest_first_without_gap_or_overlap(any_database: DatabaseLike) -> None:
    ids = [f"batch_{number}" for number in range(7)]
    for number, id in enumerate(ids):
        created = START + timedelta(seconds=number // 2)
        await any_database.batches.upsert(an_order(id, created_at=created))
    seen: list[str] = []
    more, last = True, None
    while more:
        rows, more = await any_database.batches.page("t", limit=3, after=last)
        seen, last = seen + [row.order.batch_id for row in rows], rows[-1].order.batch_id
    assert seen == ids[::-1]


async def test_a_page_shows_rows_as_get_does(any_database: DatabaseLike) -> None:
    running = await a_running_batch(any_database, "batch_1")
    ended = await any_database.batches.upsert(an_order("batch_2"))
    assert await any_database.batches.page("t", limit=2, after=None) == ([ended, running], False)
