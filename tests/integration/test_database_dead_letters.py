"""Dead letters, in memory and in PostgreSQL."""

import asyncio
from datetime import timedelta

import pytest

from batchwright.contracts.batch import BatchOrder, Chance, Origin
from batchwright.contracts.openai import BatchStatus
from batchwright.database.base import DatabaseLike
from batchwright.database.dead_letters_base import Buried
from batchwright.database.errors import UnknownCursor
from batchwright.database.retention_base import Ended
from batchwright.rules.dead_letters import DeadLetter
from tests.integration.rows import START, a_file, after, an_order, an_outcome


def letter(number: int, batch: int = 1) -> DeadLetter:
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


async def ended(database: DatabaseLike, *numbers: int, batch: int = 1, tenant: str = "t") -> None:
    """`batch_<batch>` has ended with these letters."""
    order = an_order(f"batch_{batch}", tenant)
    await database.batches.upsert(order)
    outcome = an_outcome(output=None, error=None, dead_letters=[letter(n, batch) for n in numbers])
    await database.batches.finish(tenant, order.batch_id, outcome, after(100))


def retry(number: int, origin: int = 1) -> BatchOrder:
    return an_order(f"batch_{number}", origin=Origin(batch_id=f"batch_{origin}", chance=Chance.RETRY))


async def ids(database: DatabaseLike, **filters: str) -> list[str]:
    asked = {"tenant": filters.get("tenant"), "batch_id": filters.get("batch_id")}
    rows, _ = await database.dead_letters.page(**asked, limit=100, after=None)
    return [row.letter.id for row in rows]


async def origins(database: DatabaseLike, **changes: str) -> list[tuple[str, str]]:
    tenant, batch_id = changes.get("tenant"), changes.get("batch_id")
    return await database.dead_letters.origins(
        tenant=tenant, batch_id=batch_id, limit=100, after=changes.get("after", "")
    )


async def test_a_letter_comes_back_as_it_was(any_database: DatabaseLike) -> None:
    await ended(any_database, 1)
    assert await any_database.dead_letters.get("batch_req_11") == Buried("t", "batch_1", letter(1))
    assert await any_database.dead_letters.get("batch_req_\x00") is None


async def test_a_batch_that_had_ended_gets_no_more(any_database: DatabaseLike) -> None:
    await ended(any_database, 1)
    outcome = an_outcome(dead_letters=[letter(2)])
    await any_database.batches.finish("t", "batch_1", outcome, after(200))
    assert await ids(any_database) == ["batch_req_11"]


async def test_thousands_are_listed_at_once(any_database: DatabaseLike) -> None:
    await ended(any_database, *range(2_500))
    rows, more = await any_database.dead_letters.page(tenant=None, batch_id=None, limit=2_600, after=None)
    assert (len(rows), more) == (2_500, False)


async def test_pages_go_from_the_latest_on_and_can_be_of_a_tenant_or_batch(
    any_database: DatabaseLike,
) -> None:
    await ended(any_database, 1, 2, 3)
    await ended(any_database, 4, batch=2, tenant="u")
    table = any_database.dead_letters
    first, more = await table.page(tenant=None, batch_id=None, limit=2, after=None)
    assert ([row.letter.id for row in first], more) == (["batch_req_24", "batch_req_13"], True)
    rest, more = await table.page(tenant=None, batch_id=None, limit=2, after="batch_req_13")
    assert ([row.letter.id for row in rest], more) == (["batch_req_12", "batch_req_11"], False)
    assert await ids(any_database, tenant="u") == ["batch_req_24"]
    assert await ids(any_database, batch_id="batch_1") == ["batch_req_13", "batch_req_12", "batch_req_11"]
    assert await ids(any_database, tenant="u", batch_id="batch_1") == []


@pytest.mark.parametrize(("tenant", "after_id"), [(None, "none"), ("u", "batch_req_11"), (None, "\x00")])
async def test_an_unknown_cursor_is_refused(
    tenant: str | None, after_id: str, any_database: DatabaseLike
) -> None:
    await ended(any_database, 1)
    with pytest.raises(UnknownCursor):
        await any_database.dead_letters.page(tenant=tenant, batch_id=None, limit=1, after=after_id)


async def test_a_claim_gives_the_letters_to_one_batch_with_its_input(any_database: DatabaseLike) -> None:
    await ended(any_database, 3, 1, 2)
    table = any_database.dead_letters
    assert await table.not_retried("t", "batch_1") == ["batch_req_11", "batch_req_12", "batch_req_13"]
    assert await table.claim(["batch_req_11", "batch_req_13"], retry(5), a_file("file-5"))
    assert await table.not_retried("t", "batch_1") == ["batch_req_12"]
    found = await table.get("batch_req_11")
    assert found is not None
    assert found.retry == retry(5)
    assert await any_database.files.get("t", "file-5") is not None


@pytest.mark.parametrize("wanted", ["batch_req_11", "batch_req_19", "batch_req_21"])
async def test_a_claim_of_what_is_taken_or_gone_or_anothers_changes_nothing(
    wanted: str, any_database: DatabaseLike
) -> None:
    await ended(any_database, 1, 2)
    await ended(any_database, 1, batch=2)
    table = any_database.dead_letters
    assert await table.claim(["batch_req_11"], retry(5), a_file("file-5"))
    assert not await table.claim(["batch_req_12", wanted], retry(6), a_file("file-6"))
    assert await table.not_retried("t", "batch_1") == ["batch_req_12"]
    assert await any_database.files.get("t", "file-6") is None


async def test_of_claims_at_once_one_wins(any_database: DatabaseLike) -> None:
    await ended(any_database, 1, 2)
    both = ["batch_req_11", "batch_req_12"]
    claims = [any_database.dead_letters.claim(both, retry(n), a_file(f"file-{n}")) for n in range(5, 9)]
    assert sorted(await asyncio.gather(*claims)) == [False, False, False, True]


async def test_all_are_the_batches_with_letters_left_or_a_retry_that_was_not_begun(
    any_database: DatabaseLike,
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
    assert await table.not_begun("t", "batch_2") == [retry(6, 2)]
    assert await table.not_begun("t", "batch_1") == []


async def test_a_deleted_letter_is_gone(any_database: DatabaseLike) -> None:
    await ended(any_database, 1)
    assert await any_database.dead_letters.delete("batch_req_11")
    assert not await any_database.dead_letters.delete("batch_req_11")
    assert not await any_database.dead_letters.delete("\x00")
    assert await ids(any_database) == []


async def remove(database: DatabaseLike, batch_id: str) -> None:
    gone = Ended("t", batch_id, after(100))
    await database.retention.batch_swept(gone, START)
    await database.retention.remove_batch(gone)


async def test_letters_go_with_their_batch(any_database: DatabaseLike) -> None:
    await ended(any_database, 1)
    await ended(any_database, 1, batch=2)
    await remove(any_database, "batch_1")
    assert await ids(any_database) == ["batch_req_21"]


async def test_a_retry_is_forgotten_with_the_batch_that_was_made(any_database: DatabaseLike) -> None:
    await ended(any_database, 1)
    table = any_database.dead_letters
    await table.claim(["batch_req_11"], retry(5), a_file("file-5"))
    await any_database.batches.upsert(retry(5))
    await any_database.batches.end("t", "batch_5", BatchStatus.FAILED, [], after(100) + timedelta(1))
    await remove(any_database, "batch_5")
    found = await table.get("batch_req_11")
    assert found is not None
    assert found.retry is None
    assert await table.claim(["batch_req_11"], retry(6), a_file("file-6"))
