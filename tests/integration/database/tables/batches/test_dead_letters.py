"""Dead letters (lines that failed for good), in memory and in PostgreSQL."""

import asyncio
from datetime import timedelta

import pytest

from batchwright.contracts.temporal_payloads.batch import BatchOrder, RerunKind, SourceBatch
from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.errors import UnknownCursor
from batchwright.database.tables.batches.dead_letters import StoredDeadLetter
from batchwright.database.tables.operations.retention import EndedItem
from batchwright.rules.results.dead_letters import DeadLetter
from tests.integration.database.rows import START, a_file, after, an_order, an_outcome


def a_dead_letter(number: int, batch: int = 1) -> DeadLetter:
    return DeadLetter(
        id=f"batch_req_{batch}{number}",
        offset=number * 10,
        custom_id=f'"{number}" é',
        model="m",
        attempts=5,
        failed_at=after(number),
        status=500,
        message="it's \\ no",
    )


async def ended(database: Database, *numbers: int, batch: int = 1, tenant: str = "t") -> None:
    """Create the batch `batch_<batch>`, which has ended with a dead letter for each number."""
    order = an_order(f"batch_{batch}", tenant)
    await database.batches.upsert(order)
    outcome = an_outcome(output=None, error=None, dead_letters=[a_dead_letter(n, batch) for n in numbers])
    await database.batch_ends.finish(tenant, order.batch_id, outcome, after(100))


def retry(number: int, origin: int = 1) -> BatchOrder:
    return an_order(f"batch_{number}", origin=SourceBatch(batch_id=f"batch_{origin}", kind=RerunKind.RETRY))


async def ids(database: Database, **filters: str) -> list[str]:
    scope = {"tenant": filters.get("tenant"), "batch_id": filters.get("batch_id")}
    rows, _ = await database.dead_letters.page(**scope, limit=100, after=None)
    return [row.dead_letter.id for row in rows]


async def origins(database: Database, **changes: str) -> list[tuple[str, str]]:
    tenant, batch_id = changes.get("tenant"), changes.get("batch_id")
    return await database.dead_letters.retryable_batches(
        tenant=tenant, batch_id=batch_id, limit=100, after=changes.get("after", "")
    )


async def test_a_dead_letter_is_read_as_it_was_written(any_database: Database) -> None:
    await ended(any_database, 1)
    assert await any_database.dead_letters.get("batch_req_11") == StoredDeadLetter(
        "t", "batch_1", a_dead_letter(1)
    )
    assert await any_database.dead_letters.get("batch_req_\x00") is None


async def test_an_ended_batch_gets_no_more_dead_letters(any_database: Database) -> None:
    await ended(any_database, 1)
    outcome = an_outcome(dead_letters=[a_dead_letter(2)])
    await any_database.batch_ends.finish("t", "batch_1", outcome, after(200))
    assert await ids(any_database) == ["batch_req_11"]


async def test_thousands_are_listed_at_once(any_database: Database) -> None:
    await ended(any_database, *range(2_500))
    rows, more = await any_database.dead_letters.page(tenant=None, batch_id=None, limit=2_600, after=None)
    assert (len(rows), more) == (2_500, False)


async def test_pages_start_with_the_latest_and_can_be_filtered_by_tenant_or_batch(
    any_database: Database,
) -> None:
    await ended(any_database, 1, 2, 3)
    await ended(any_database, 4, batch=2, tenant="u")
    table = any_database.dead_letters
    first, more = await table.page(tenant=None, batch_id=None, limit=2, after=None)
    assert ([row.dead_letter.id for row in first], more) == (["batch_req_24", "batch_req_13"], True)
    rest, more = await table.page(tenant=None, batch_id=None, limit=2, after="batch_req_13")
    assert ([row.dead_letter.id for row in rest], more) == (["batch_req_12", "batch_req_11"], False)
    assert await ids(any_database, tenant="u") == ["batch_req_24"]
    assert await ids(any_database, batch_id="batch_1") == ["batch_req_13", "batch_req_12", "batch_req_11"]
    assert await ids(any_database, tenant="u", batch_id="batch_1") == []


@pytest.mark.parametrize(("tenant", "after_id"), [(None, "none"), ("u", "batch_req_11"), (None, "\x00")])
async def test_an_unknown_cursor_is_refused(
    tenant: str | None, after_id: str, any_database: Database
) -> None:
    await ended(any_database, 1)
    with pytest.raises(UnknownCursor):
        await any_database.dead_letters.page(tenant=tenant, batch_id=None, limit=1, after=after_id)


async def test_a_claim_gives_the_dead_letters_to_one_batch_with_its_input(any_database: Database) -> None:
    await ended(any_database, 3, 1, 2)
    table = any_database.dead_letters
    assert await table.unretried_ids("t", "batch_1") == ["batch_req_11", "batch_req_12", "batch_req_13"]
    assert await table.claim(["batch_req_11", "batch_req_13"], retry(5), a_file("file-5"))
    assert await table.unretried_ids("t", "batch_1") == ["batch_req_12"]
    found = await table.get("batch_req_11")
    assert found is not None
    assert found.retry == retry(5)
    assert await any_database.files.get("t", "file-5") is not None


@pytest.mark.parametrize("wanted", ["batch_req_11", "batch_req_19", "batch_req_21"])
async def test_a_claim_of_claimed_deleted_or_foreign_dead_letters_changes_nothing(
    wanted: str, any_database: Database
) -> None:
    await ended(any_database, 1, 2)
    await ended(any_database, 1, batch=2)
    table = any_database.dead_letters
    assert await table.claim(["batch_req_11"], retry(5), a_file("file-5"))
    assert not await table.claim(["batch_req_12", wanted], retry(6), a_file("file-6"))
    assert await table.unretried_ids("t", "batch_1") == ["batch_req_12"]
    assert await any_database.files.get("t", "file-6") is None


async def test_of_concurrent_claims_one_wins(any_database: Database) -> None:
    await ended(any_database, 1, 2)
    both = ["batch_req_11", "batch_req_12"]
    claims = [any_database.dead_letters.claim(both, retry(n), a_file(f"file-{n}")) for n in range(5, 9)]
    assert sorted(await asyncio.gather(*claims)) == [False, False, False, True]


async def test_retry_all_selects_batches_with_dead_letters_or_an_unstarted_retry(
    any_database: Database,
) -> None:
    for number in (1, 2, 3):
        await ended(any_database, 1, batch=number)
    await ended(any_database, 1, batch=4, tenant="u")
    table = any_database.dead_letters
    await table.claim(["batch_req_11"], retry(5, 1), a_file("file-5"))
    await any_database.batches.upsert(retry(5, 1))
    await table.claim(["batch_req_21"], retry(6, 2), a_file("file-6"))
    assert await origins(any_database) == [("t", "batch_2"), ("t", "batch_3"), ("u", "batch_4")]
    assert await origins(any_database, after="batch_2", tenant="t") == [("t", "batch_3")]
    assert await origins(any_database, batch_id="batch_3") == [("t", "batch_3")]
    assert await table.unstarted_retries("t", "batch_2") == [retry(6, 2)]
    assert await table.unstarted_retries("t", "batch_1") == []


async def test_batches_with_dead_letters_to_retry_are_selected_by_tenant_batch_and_page(
    any_database: Database,
) -> None:
    table = any_database.dead_letters
    await ended(any_database, 1, batch=1)  # retried
    await ended(any_database, 1, batch=2)  # the batch that retries it was not started
    await ended(any_database, 1, 2, 3, batch=3)  # one of three is retried
    await ended(any_database, 1, 2, batch=4, tenant="u")
    await ended(any_database, 1, batch=5, tenant="u")  # the batch that retries it was not started
    await ended(any_database, 1, batch=6, tenant="u")  # retried
    for number, tenant, is_started in ((1, "t", 1), (2, "t", 0), (3, "t", 1), (5, "u", 0), (6, "u", 1)):
        order = retry(number + 10, number).model_copy(update={"tenant": tenant})
        file = a_file(f"file-{number}").model_copy(update={"tenant": tenant})
        assert await table.claim([f"batch_req_{number}1"], order, file)
        if is_started:
            await any_database.batches.upsert(order)
    every = [("t", "batch_2"), ("t", "batch_3"), ("u", "batch_4"), ("u", "batch_5")]
    for tenant in (None, "t", "u", "v"):
        mine = [found for found in every if tenant in (None, found[0])]
        for after_id in ("", *(f"batch_{number}" for number in range(1, 7))):
            rest = [found for found in mine if found[1] > after_id]
            for limit in (1, 2, 3, 5):
                found = await table.retryable_batches(
                    tenant=tenant, batch_id=None, limit=limit, after=after_id
                )
                assert found == rest[:limit]
            for number in range(1, 7):
                found = await table.retryable_batches(
                    tenant=tenant, batch_id=f"batch_{number}", limit=5, after=after_id
                )
                assert found == [each for each in rest if each[1] == f"batch_{number}"]


async def test_a_deleted_dead_letter_is_not_found(any_database: Database) -> None:
    await ended(any_database, 1)
    assert await any_database.dead_letters.delete("batch_req_11")
    assert not await any_database.dead_letters.delete("batch_req_11")
    assert not await any_database.dead_letters.delete("\x00")
    assert await ids(any_database) == []


async def remove(database: Database, batch_id: str) -> None:
    gone = EndedItem("t", batch_id, after(100))
    await database.retention.record_sweep(gone, START)
    await database.retention.remove_batch(gone)


async def test_dead_letters_are_deleted_with_their_batch(any_database: Database) -> None:
    await ended(any_database, 1)
    await ended(any_database, 1, batch=2)
    await remove(any_database, "batch_1")
    assert await ids(any_database) == ["batch_req_21"]


async def test_a_retry_is_deleted_with_the_batch_that_it_created(any_database: Database) -> None:
    await ended(any_database, 1)
    table = any_database.dead_letters
    await table.claim(["batch_req_11"], retry(5), a_file("file-5"))
    await any_database.batches.upsert(retry(5))
    await any_database.batch_ends.end_without_files(
        "t", "batch_5", BatchStatus.FAILED, [], after(100) + timedelta(1)
    )
    await remove(any_database, "batch_5")
    found = await table.get("batch_req_11")
    assert found is not None
    assert found.retry is None
    assert await table.claim(["batch_req_11"], retry(6), a_file("file-6"))
