"""Batches and their status changes.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from batchwright.contracts.temporal_payloads.batch import BatchPolicy
from batchwright.contracts.temporal_payloads.output_copies import OutputCopy, OutputCopyState
from batchwright.contracts.terms import BatchStatus, Endpoint, Profile, ValidationError
from batchwright.database.database import Database
from batchwright.database.errors import UnknownBatch, UnknownCursor
from batchwright.database.records import BatchRow
from batchwright.rules.batch_filters import BatchFilters
from batchwright.rules.dispatch.fair_queue import fresh_fairness_key
from tests.integration.database.rows import MODELS, START, a_running_batch, after, an_order

ERRORS = [
    ValidationError(code="invalid_json_line", message="This line is not parseable.", line=3),
    ValidationError(code="invalid_type", message="\0 and ü are what clients write", param="custom_id"),
]


async def test_a_new_batch_is_validating_and_holds_its_whole_order(any_database: Database) -> None:
    order = an_order(
        endpoint=Endpoint.EMBEDDINGS,
        metadata={"k": "v", "ü": "\0 \\u0000 '"},
        output_expires_after_seconds=3600,
        weight=0.3,
        priority=5,
        policy=BatchPolicy(profile=Profile.STRICT, slice_seconds=0.1),
        input_location="s3://data/ü.jsonl",
        output_location="s3://out/ü",
    )
    row = BatchRow(order=order, status=BatchStatus.VALIDATING)
    assert await any_database.batches.upsert(order) == row
    assert await any_database.batches.get("t", "batch_1") == row


@pytest.mark.parametrize("metadata", [None, {}])
async def test_no_metadata_and_empty_metadata_stay_apart(
    any_database: Database, metadata: dict[str, str] | None
) -> None:
    row = await any_database.batches.upsert(an_order(metadata=metadata))
    assert row.order.metadata == metadata


async def test_a_second_upsert_returns_the_row_as_it_is(any_database: Database) -> None:
    running = await a_running_batch(any_database)
    assert await any_database.batches.upsert(an_order(weight=9.0)) == running


async def test_changes_of_a_batch_are_counted_up_to_the_given_number(any_database: Database) -> None:
    batches = any_database.batches
    await batches.upsert(an_order())
    await batches.upsert(an_order("batch_2"))
    assert [await batches.claim_pause_or_resume("t", "batch_1", 2) for _ in range(4)] == [1, 2, None, None]
    assert await batches.claim_pause_or_resume("t", "batch_1", 3) == 3
    assert await batches.claim_pause_or_resume("t", "batch_2", 1) == 1


async def test_a_change_that_failed_is_not_counted_and_its_number_is_not_used_again(
    any_database: Database,
) -> None:
    batches = any_database.batches
    await batches.upsert(an_order())
    await batches.upsert(an_order("batch_2"))
    assert await batches.claim_pause_or_resume("t", "batch_1", 1) == 1
    await batches.release_pause_or_resume("t", "batch_1")
    assert [await batches.claim_pause_or_resume("t", "batch_1", 1) for _ in range(2)] == [2, None]
    assert await batches.claim_pause_or_resume("t", "batch_2", 1) == 1


async def test_changes_at_the_same_time_are_all_counted(any_database: Database) -> None:
    batches = any_database.batches
    await batches.upsert(an_order())
    counted = await asyncio.gather(*(batches.claim_pause_or_resume("t", "batch_1", 5) for _ in range(20)))
    assert sorted(number for number in counted if number) == [1, 2, 3, 4, 5]


async def test_changes_of_an_unknown_batch_are_not_counted(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    assert not await any_database.batches.claim_pause_or_resume("u", "batch_1", 2)


async def test_changes_of_an_ended_batch_are_not_counted(any_database: Database) -> None:
    batches = any_database.batches
    await batches.upsert(an_order())
    assert await any_database.batch_ends.fail_validation("t", "batch_1", errors=ERRORS, total=4, at=after(5))
    assert not await batches.claim_pause_or_resume("t", "batch_1", 2)


async def test_changes_are_counted_until_the_batch_ends(any_database: Database) -> None:
    await a_running_batch(any_database)
    batches = any_database.batches
    assert await batches.claim_pause_or_resume("t", "batch_1", 1)
    await batches.start_finalizing("t", "batch_1", after(20))
    assert await batches.claim_pause_or_resume("t", "batch_1", 2)
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(30))
    assert not await batches.claim_pause_or_resume("t", "batch_1", 3)


async def test_beginning_sets_total_models_and_time(any_database: Database) -> None:
    row = await a_running_batch(any_database)
    assert row == BatchRow(
        order=an_order(),
        status=BatchStatus.IN_PROGRESS,
        in_progress_at=after(10),
        models=MODELS,
        total=10,
        failed=1,
    )


async def test_the_copy_of_the_files_has_a_state_and_only_a_success_replaces_a_final_one(
    any_database: Database,
) -> None:
    batches, written = any_database.batches, OutputCopy(state=OutputCopyState.WRITTEN)
    failed = OutputCopy(state=OutputCopyState.FAILED, error="ü")
    await batches.upsert(an_order(output_location="s3://out/"))
    await batches.upsert(an_order("batch_2"))
    await batches.record_output_copy("t", "batch_1", written)  # it has not ended
    for batch_id in ("batch_1", "batch_2"):
        await any_database.batch_ends.end_without_files("t", batch_id, BatchStatus.EXPIRED, [], after(30))
    late = [OutputCopy(error="late"), OutputCopy(state=OutputCopyState.FAILED, error="late")]
    for copies, kept in (
        ([OutputCopy(error="no"), OutputCopy(error="no \0")], OutputCopy(error="no \ufffd")),
        ([OutputCopy(error="again"), failed, *late], failed),
        ([written, *late], written),
    ):
        for copy in copies:
            await batches.record_output_copy("u", "batch_1", written)
            await batches.record_output_copy("t", "batch_1", copy)
        row = await batches.get("t", "batch_1")
        assert row is not None
        assert row.output_copy is not None
        shown = row.output_copy.error.replace("\0", "\ufffd")  # PostgreSQL cannot store a NUL
        assert row.output_copy.model_copy(update={"error": shown}) == kept
    await batches.record_output_copy("t", "batch_2", written)  # it has no location
    row = await batches.get("t", "batch_2")
    assert row is not None
    assert row.output_copy is None


@pytest.mark.parametrize("status", ["completed", "failed", "expired", "cancelled"])
async def test_the_files_of_each_ended_batch_can_be_copied(any_database: Database, status: str) -> None:
    batches, written = any_database.batches, OutputCopy(state=OutputCopyState.WRITTEN)
    await batches.upsert(an_order(output_location="s3://out/"))
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus(status), [], after(30))
    await batches.record_output_copy("t", "batch_1", written)
    row = await batches.get("t", "batch_1")
    assert row is not None
    assert row.output_copy == written


async def test_validation_fails_with_its_errors(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    assert await any_database.batch_ends.fail_validation("t", "batch_1", errors=ERRORS, total=4, at=after(5))
    assert await any_database.batches.get("t", "batch_1") == BatchRow(
        order=an_order(), status=BatchStatus.FAILED, failed_at=after(5), errors=ERRORS, total=4
    )


async def test_finalizing_follows_progress(any_database: Database) -> None:
    running = await a_running_batch(any_database)
    assert await any_database.batches.start_finalizing("t", "batch_1", after(20))
    assert await any_database.batches.get("t", "batch_1") == running.model_copy(
        update={"status": BatchStatus.FINALIZING, "finalizing_at": after(20)}
    )


async def test_a_change_from_another_status_changes_nothing(any_database: Database) -> None:
    batches = any_database.batches
    await batches.upsert(an_order())
    assert not await batches.start_finalizing("t", "batch_1", after(1))
    assert await batches.start("t", "batch_1", total=1, models=[], at=after(1))
    before = await batches.get("t", "batch_1")
    assert not await batches.start("t", "batch_1", total=2, models=MODELS, at=after(2))
    assert not await any_database.batch_ends.fail_validation(
        "t", "batch_1", errors=ERRORS, total=2, at=after(2)
    )
    assert await batches.get("t", "batch_1") == before


async def test_a_change_of_an_unknown_batch_changes_nothing(any_database: Database) -> None:
    batches = any_database.batches
    assert not await batches.start("t", "batch_1", total=1, models=[], at=START)
    assert not await any_database.batch_ends.fail_validation("t", "batch_1", errors=[], total=1, at=START)
    assert not await batches.start_finalizing("t", "batch_1", START)
    assert await batches.request_cancel("t", "batch_1", START) is None
    with pytest.raises(UnknownBatch, match="batch_1"):
        await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], START)


async def test_a_batch_of_another_tenant_is_unknown_and_cannot_be_changed(any_database: Database) -> None:
    batches = any_database.batches
    row = await batches.upsert(an_order())
    assert await batches.get("other", "batch_1") is None
    assert await any_database.batch_list.page("other", limit=5, after=None) == ([], False)
    with pytest.raises(UnknownCursor):
        await any_database.batch_list.page("other", limit=5, after="batch_1")
    assert await any_database.batch_list.count_live("other") == 0
    assert await batches.request_cancel("other", "batch_1", START) is None
    assert not await batches.start("other", "batch_1", total=1, models=[], at=START)
    with pytest.raises(UnknownBatch):
        await any_database.batch_ends.end_without_files("other", "batch_1", BatchStatus.FAILED, [], START)
    assert await batches.get("t", "batch_1") == row


@pytest.mark.parametrize("batch_id", ["", "batch_\0", "\ud800"])
async def test_unknown_ids_are_not_found(any_database: Database, batch_id: str) -> None:
    assert await any_database.batches.get("t", batch_id) is None
    assert await any_database.batches.request_cancel("t", batch_id, START) is None
    with pytest.raises(UnknownCursor):
        await any_database.batch_list.page("t", limit=5, after=batch_id)


async def test_a_cancel_is_recorded_once(any_database: Database) -> None:
    running = await a_running_batch(any_database)
    noted = running.model_copy(update={"cancel_requested_at": after(30)})
    assert await any_database.batches.request_cancel("t", "batch_1", after(30)) == noted
    assert await any_database.batches.request_cancel("t", "batch_1", after(40)) == noted


async def test_a_cancel_of_an_ended_batch_changes_nothing(any_database: Database) -> None:
    await a_running_batch(any_database)
    ended, _ = await any_database.batch_ends.end_without_files(
        "t", "batch_1", BatchStatus.EXPIRED, [], after(30)
    )
    assert await any_database.batches.request_cancel("t", "batch_1", after(40)) == ended


async def test_times_never_decrease_even_if_clocks_do(any_database: Database) -> None:
    batches = any_database.batches
    await batches.upsert(an_order())
    await batches.start("t", "batch_1", total=1, models=[], at=after(-100))
    await batches.request_cancel("t", "batch_1", after(50))
    await batches.start_finalizing("t", "batch_1", after(40))
    row, _ = await any_database.batch_ends.end_without_files(
        "t", "batch_1", BatchStatus.CANCELLED, [], after(30)
    )
    times = (row.in_progress_at, row.cancel_requested_at, row.finalizing_at, row.cancelled_at)
    assert times == (START, after(50), after(50), after(50))


async def test_only_live_batches_of_the_tenant_are_counted(any_database: Database) -> None:
    await any_database.batches.upsert(an_order("batch_1"))
    await a_running_batch(any_database, "batch_2")
    await a_running_batch(any_database, "batch_3")
    await any_database.batches.start_finalizing("t", "batch_3", after(20))
    await any_database.batches.upsert(an_order("batch_4"))
    await any_database.batch_ends.end_without_files("t", "batch_4", BatchStatus.CANCELLED, [], after(1))
    await any_database.batches.upsert(an_order("batch_5", tenant="other"))
    assert await any_database.batch_list.count_live("t") == 3


async def test_a_batch_gets_the_fairness_key_of_live_batches_or_a_fresh_one_after_a_stop(
    any_database: Database,
) -> None:
    batches, batch_list = any_database.batches, any_database.batch_list

    async def put(id: str, at: int, key: str) -> None:
        await batches.upsert(an_order(id, created_at=after(at), policy=BatchPolicy(fairness_key=key)))

    assert await batch_list.fairness_key("t", after(0)) == ""
    await put("batch_1", 0, "")
    assert await batch_list.fairness_key("t", after(1)) == ""
    await batches.request_cancel("t", "batch_1", after(2))
    key = await batch_list.fairness_key("t", after(3))
    assert key == fresh_fairness_key("t", "batch_1")
    await put("batch_2", 3, key)
    assert await batch_list.fairness_key("t", after(4)) == key
    await put("batch_3", 4, key)
    await any_database.batch_ends.end_without_files("t", "batch_2", BatchStatus.EXPIRED, [], after(5))
    assert await batch_list.fairness_key("t", after(6)) == key
    await any_database.batch_ends.end_without_files("t", "batch_3", BatchStatus.FAILED, [], after(7))
    assert await batch_list.fairness_key("t", after(8)) == fresh_fairness_key("t", "batch_2")
    assert await batch_list.fairness_key("other", after(8)) == ""


async def test_pages_are_newest_first_without_gap_or_overlap(any_database: Database) -> None:
    ids = [f"batch_{number}" for number in range(7)]
    for number, id in enumerate(ids):
        created = START + timedelta(seconds=number // 2)
        await any_database.batches.upsert(an_order(id, created_at=created))
    seen: list[str] = []
    more, last = True, None
    while more:
        rows, more = await any_database.batch_list.page("t", limit=3, after=last)
        seen, last = seen + [row.order.batch_id for row in rows], rows[-1].order.batch_id
    assert seen == ids[::-1]


async def test_a_page_shows_rows_as_get_does(any_database: Database) -> None:
    running = await a_running_batch(any_database, "batch_1")
    ended = await any_database.batches.upsert(an_order("batch_2"))
    assert await any_database.batch_list.page("t", limit=2, after=None) == ([ended, running], False)


async def test_a_batch_has_the_time_when_reading_its_input_began(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    await any_database.batches.start("t", "batch_1", total=1, models=[], at=after(10), began_at=after(3))
    ended, _ = await any_database.batch_ends.end_without_files(
        "t", "batch_1", BatchStatus.EXPIRED, [], after(30)
    )
    assert ended.ingestion_began_at == after(3)


async def found(database: Database, **filters: Any) -> list[str]:
    rows, _ = await database.batch_list.page("t", limit=9, after=None, filters=BatchFilters(**filters))
    return [row.order.batch_id for row in rows]


async def test_a_page_is_filtered_by_the_status_that_clients_see(any_database: Database) -> None:
    batches = any_database.batches
    for number in (1, 2, 3):
        await batches.upsert(an_order(f"batch_{number}", created_at=after(number)))
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(9))
    await batches.request_cancel("t", "batch_2", after(9))
    assert await found(any_database, status=BatchStatus.FAILED) == ["batch_1"]
    assert await found(any_database, status=BatchStatus.CANCELLING) == ["batch_2"]
    assert await found(any_database, status=BatchStatus.VALIDATING) == ["batch_3"]
    assert await found(any_database, status=BatchStatus.COMPLETED) == []
    await any_database.batch_ends.end_without_files("t", "batch_2", BatchStatus.CANCELLED, [], after(9))
    assert await found(any_database, status=BatchStatus.CANCELLED) == ["batch_2"]


async def test_a_page_is_filtered_by_creation_from_a_time_to_before_another(any_database: Database) -> None:
    for number in (1, 2, 3):
        await any_database.batches.upsert(an_order(f"batch_{number}", created_at=after(number)))
    assert await found(any_database, created_after=after(2)) == ["batch_3", "batch_2"]
    assert await found(any_database, created_before=after(2)) == ["batch_1"]
    assert await found(any_database, created_after=after(2), created_before=after(3)) == ["batch_2"]
    assert await found(any_database, created_after=after(3), created_before=after(2)) == []


async def test_a_page_is_filtered_by_a_model_once_the_input_is_validated(any_database: Database) -> None:
    await a_running_batch(any_database)
    await any_database.batches.upsert(an_order("batch_2"))
    assert await found(any_database, model="a") == await found(any_database, model="b") == ["batch_1"]
    assert await found(any_database, model="c") == []
    assert await found(any_database, model="a", status=BatchStatus.IN_PROGRESS) == ["batch_1"]
    assert await found(any_database, model="a", status=BatchStatus.FAILED) == []


async def test_a_page_is_filtered_by_pairs_of_metadata_which_the_batch_has_all(
    any_database: Database,
) -> None:
    for number, metadata in enumerate(({"a": "1"}, {"a": "1", "ü": "\0 '"}, {"a": "2"}, {"1": "a"}, None)):
        await any_database.batches.upsert(
            an_order(f"batch_{number}", created_at=after(number), metadata=metadata)
        )
    assert await found(any_database, metadata=(("a", "1"),)) == ["batch_1", "batch_0"]
    assert await found(any_database, metadata=(("a", "1"), ("ü", "\0 '"))) == ["batch_1"]
    assert await found(any_database, metadata=(("a", "1"), ("a", "2"))) == []
    assert await found(any_database, metadata=(("a", "1"),), created_before=after(1)) == ["batch_0"]


async def test_a_filtered_list_is_paged_from_the_newest_and_of_one_tenant(any_database: Database) -> None:
    batches, filters = any_database.batches, BatchFilters(metadata=(("a", "1"),))
    for number in range(4):
        order = an_order(f"batch_{number}", created_at=after(number), metadata={"a": "1"})
        await batches.upsert(order)
        await batches.upsert(order.model_copy(update={"tenant": "other"}))
    first, more = await any_database.batch_list.page("t", limit=3, after=None, filters=filters)
    rest, end = await any_database.batch_list.page("t", limit=3, after="batch_1", filters=filters)
    ids = [row.order.batch_id for row in (*first, *rest)]
    assert (ids, more, end) == (["batch_3", "batch_2", "batch_1", "batch_0"], True, False)
    assert {row.order.tenant for row in (*first, *rest)} == {"t"}
    assert (await any_database.batch_list.page("t", limit=3, after="batch_2", filters=filters))[1] is False


async def test_a_page_before_a_batch_of_an_endpoint_ends_right_before_it(any_database: Database) -> None:
    batches = any_database.batches
    for number in range(8):
        endpoint = Endpoint.MESSAGES if number % 2 else Endpoint.EMBEDDINGS
        await batches.upsert(an_order(f"batch_{number}", created_at=after(number // 3), endpoint=endpoint))
    await batches.upsert(an_order("batch_9", tenant="other", endpoint=Endpoint.MESSAGES))

    async def before(batch_id: str) -> tuple[list[str], bool]:
        rows, more = await any_database.batch_list.page_before(
            "t", batch_id, limit=2, endpoint=Endpoint.MESSAGES
        )
        return [row.order.batch_id for row in rows], more

    assert await before("batch_1") == (["batch_5", "batch_3"], True)
    assert await before("batch_3") == (["batch_7", "batch_5"], False)
    assert await before("batch_7") == ([], False)
    assert await before("batch_2") == (["batch_5", "batch_3"], True)  # a batch of another endpoint
    for unknown in ("batch_9", "\x00"):
        with pytest.raises(UnknownCursor):
            await before(unknown)
