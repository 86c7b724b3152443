"""Single calls and the rolling batches that collect them.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.api_objects.webhook_events import CALL_EVENTS
from batchwright.contracts.calls import CallStatus
from batchwright.contracts.terms import BatchStatus, ValidationError
from batchwright.database.database import Database
from batchwright.database.driver import DatabaseConnection
from batchwright.database.tables.calls import LONGEST_OPEN, CallKey, CallLine
from tests.integration.database.call_rows import (
    GROUP,
    a_call,
    a_rolling_order,
    an_answer,
    opened,
    status_of,
)
from tests.integration.database.rows import after
from tests.integration.database.webhook_rows import an_endpoint, attempt, attempted, create, recorded, types


async def lines(database: Database, batch_id: str = "batch_1") -> list[CallLine]:
    return [line async for line in database.calls.collected("t", batch_id)]


async def test_a_call_is_stored_for_the_open_batch_of_its_group(any_database: Database) -> None:
    calls = any_database.calls
    assert await calls.insert(a_call()) is None
    assert await calls.get("t", "resp_1") is None
    await calls.open(GROUP, a_rolling_order(), max_batches=9)
    await calls.open(GROUP, a_rolling_order("batch_2"), max_batches=9)  # by another process, at the same time
    stored = await calls.insert(a_call())
    assert stored is not None
    assert (stored.batch_id, stored.order) == ("batch_1", a_rolling_order())
    call = await calls.get("t", "resp_1")
    assert call is not None
    assert call.request == a_call().request
    assert (call.status, call.model, call.answer) == (CallStatus.QUEUED, "m", None)
    assert await calls.insert(a_call("resp_2", group="another")) is None
    assert await calls.get("other", "resp_1") is None


async def test_a_call_is_stored_for_the_open_batch_of_its_tenant(any_database: Database) -> None:
    calls = any_database.calls
    for tenant, id in (("t", "batch_1"), ("u", "batch_2")):
        await calls.open(GROUP, a_rolling_order(id, tenant), max_batches=9)
    stored = [await calls.insert(a_call(tenant=tenant)) for tenant in ("t", "u", "v")]
    assert [each and each.batch_id for each in stored] == ["batch_1", "batch_2", None]


@pytest.mark.integration
async def test_a_batch_that_is_open_for_too_long_takes_no_more_calls(
    database: Database, connection: DatabaseConnection
) -> None:
    age = "UPDATE rolling_batches SET opened_at = now() - $1::interval"
    await opened(database)
    await connection.execute(age, LONGEST_OPEN / 2)
    assert await database.calls.insert(a_call("resp_1")) is not None
    await connection.execute(age, LONGEST_OPEN)
    assert await database.calls.insert(a_call("resp_2")) is None
    await database.calls.open(GROUP, a_rolling_order("batch_2"), max_batches=9)
    stored = await database.calls.insert(a_call("resp_2"))
    assert stored is not None
    assert stored.batch_id == "batch_2"


async def test_a_batch_has_the_calls_that_were_stored_for_it_and_no_others(any_database: Database) -> None:
    calls = any_database.calls
    await opened(any_database, "resp_2", "resp_1", "resp_3")
    await calls.cancel("t", "resp_3")
    await calls.collect("t", GROUP, "batch_1")
    assert await calls.insert(a_call("resp_4")) is None
    expected = [CallLine(id, a_call().request) for id in ("resp_1", "resp_2")]
    assert await lines(any_database) == expected
    # A second attempt of ingestion reads the same lines, except those that were cancelled meanwhile.
    await calls.collect("t", GROUP, "batch_1")
    assert await lines(any_database) == expected
    await calls.cancel("t", "resp_1")
    assert await lines(any_database) == expected[1:]


async def test_collecting_a_batch_does_not_close_its_successor(any_database: Database) -> None:
    calls = any_database.calls
    await opened(any_database, "resp_1")
    await calls.collect("t", GROUP, "batch_1")
    await calls.open(GROUP, a_rolling_order("batch_2"), max_batches=9)
    await calls.collect("t", GROUP, "batch_1")
    stored = await calls.insert(a_call("resp_2"))
    assert stored is not None
    assert stored.batch_id == "batch_2"


async def test_a_repeated_call_keeps_its_batch(any_database: Database) -> None:
    calls = any_database.calls
    await opened(any_database, "resp_1")
    repeated = await calls.insert(a_call())
    assert repeated is not None
    assert repeated.order == a_rolling_order()
    await calls.collect("t", GROUP, "batch_1")
    await calls.open(GROUP, a_rolling_order("batch_2"), max_batches=9)
    repeated = await calls.insert(a_call())
    assert repeated is not None
    assert (repeated.batch_id, repeated.order) == ("batch_1", None)
    assert await lines(any_database, "batch_2") == []


async def test_no_call_is_lost_when_batches_are_collected_while_calls_come(any_database: Database) -> None:
    calls, batches = any_database.calls, [f"batch_{number}" for number in range(5)]

    async def store(id: str) -> str:
        while (stored := await calls.insert(a_call(id))) is None:
            await asyncio.sleep(0)
        return stored.batch_id

    async def collect() -> None:
        for batch_id in batches:
            await calls.open(GROUP, a_rolling_order(batch_id), max_batches=9)
            await calls.count_open("t")  # gives calls the time to come
            await calls.collect("t", GROUP, batch_id)
        await calls.open(GROUP, a_rolling_order("last"), max_batches=9)

    ids = [f"resp_{number:02}" for number in range(40)]
    stored, _ = await asyncio.gather(asyncio.gather(*map(store, ids)), collect())
    await calls.collect("t", GROUP, "last")
    found = {
        line.id: batch_id for batch_id in (*batches, "last") for line in await lines(any_database, batch_id)
    }
    assert found == dict(zip(ids, stored, strict=True))


async def stored_at(database: Database, id: str) -> datetime:
    stored = await database.calls.insert(a_call(id))
    assert stored is not None
    return stored.created_at


async def test_a_call_is_withdrawn_only_before_it_is_collected(any_database: Database) -> None:
    calls = any_database.calls
    await opened(any_database)
    first, second, third = [await stored_at(any_database, f"resp_{number}") for number in (1, 2, 3)]
    assert not await calls.withdraw("t", "resp_1", first)
    assert await status_of(any_database) is None
    await calls.cancel("t", "resp_2")
    await calls.collect("t", GROUP, "batch_1")
    assert await calls.withdraw("t", "resp_2", second)
    assert await calls.withdraw("t", "resp_3", third)
    assert await status_of(any_database, "resp_3") is CallStatus.QUEUED


async def test_a_call_is_withdrawn_only_by_the_request_that_inserted_it_and_not_once_it_is_repeated(
    any_database: Database,
) -> None:
    calls = any_database.calls
    await opened(any_database)
    first = await stored_at(any_database, "resp_1")
    assert await stored_at(any_database, "resp_1") == first
    assert not await calls.withdraw("t", "resp_1", first)
    assert await status_of(any_database) is CallStatus.QUEUED
    second = await stored_at(any_database, "resp_2")
    assert not await calls.withdraw("t", "resp_2", second - timedelta(microseconds=1))
    assert await status_of(any_database, "resp_2") is CallStatus.QUEUED


async def test_a_repeated_call_can_leave_a_batch_that_was_perhaps_never_started(
    any_database: Database,
) -> None:
    calls, again = any_database.calls, a_call(group="group_2")
    await calls.open(GROUP, a_rolling_order(), max_batches=9)
    await any_database.batches.upsert(a_rolling_order(tenant="u"))  # a batch with the same id was started
    assert await calls.insert(a_call()) is not None
    await calls.open("group_2", a_rolling_order("batch_2", group="group_2"), max_batches=9)
    repeated = await calls.insert(again)
    assert repeated is not None
    assert (repeated.batch_id, repeated.order) == ("batch_1", a_rolling_order("batch_2", group="group_2"))
    assert not await calls.move(again, "batch_1")  # it is not the open batch of this group
    assert await calls.move(again, "batch_2")
    moved = await calls.get("t", "resp_1")
    assert moved is not None
    assert moved.batch_id == "batch_2"
    await calls.collect("t", "group_2", "batch_2")
    await calls.open("group_2", a_rolling_order("batch_3", group="group_2"), max_batches=9)
    assert not await calls.move(again, "batch_3")


async def test_a_repeated_call_stays_in_a_batch_that_was_started(any_database: Database) -> None:
    calls = any_database.calls
    await opened(any_database, "resp_1")
    await calls.open("group_2", a_rolling_order("batch_2", group="group_2"), max_batches=9)
    repeated = await calls.insert(a_call(group="group_2"))
    assert repeated is not None
    assert (repeated.batch_id, repeated.order) == ("batch_1", None)


@pytest.mark.parametrize("end", ["cancelled", "collected"])
async def test_a_repeated_call_that_was_cancelled_or_collected_stays_in_its_batch(
    any_database: Database, end: str
) -> None:
    """The database row of the batch has been deleted, or is not inserted yet."""
    calls = any_database.calls
    await calls.open(GROUP, a_rolling_order(), max_batches=9)
    assert await calls.insert(a_call()) is not None
    await (calls.cancel("t", "resp_1") if end == "cancelled" else calls.collect("t", GROUP, "batch_1"))
    await calls.open("group_2", a_rolling_order("batch_2", group="group_2"), max_batches=9)
    repeated = await calls.insert(a_call(group="group_2"))
    assert repeated is not None
    assert (repeated.batch_id, repeated.order) == ("batch_1", None)


async def test_the_first_answer_of_a_call_counts(any_database: Database) -> None:
    calls = any_database.calls
    await opened(any_database, "resp_1", "resp_2", "resp_3")
    assert await calls.ended([CallKey("t", "resp_1"), CallKey("t", "resp_2")]) == []
    await calls.cancel("t", "resp_2")
    answers = [an_answer("resp_1", b"first"), an_answer("resp_2", b"late"), an_answer("unknown")]
    await calls.answer("t", answers)
    await calls.answer("t", [an_answer("resp_1", b"second", CallStatus.FAILED)])
    await calls.answer("other", [an_answer("resp_3")])
    call = await calls.get("t", "resp_1")
    assert call is not None
    assert (call.status, call.answer) == (CallStatus.COMPLETED, b"first")
    cancelled = await calls.get("t", "resp_2")
    assert cancelled is not None
    assert (cancelled.status, cancelled.answer) == (CallStatus.CANCELLED, None)
    assert await calls.unanswered("t", "batch_1") == {"resp_3"}
    assert await calls.cancelled("t", "batch_1") == {"resp_2"}
    assert await calls.count_open("t") == 1
    keys = [CallKey("t", f"resp_{number}") for number in (1, 2, 3)]
    gone = CallKey("other", "resp_1")  # does not exist
    assert sorted(await calls.ended([*keys, gone])) == [gone, *keys[:2]]


async def test_the_end_of_a_call_is_one_event_if_it_notifies(any_database: Database) -> None:
    own = an_endpoint("webhook_2", batch_id="resp_1", events=list(CALL_EVENTS))
    await create(any_database, an_endpoint("webhook_1"), own)
    await opened(any_database, "resp_1", notifies=True)
    assert await any_database.calls.insert(a_call("resp_2")) is not None
    for status in (CallStatus.INCOMPLETE, CallStatus.COMPLETED):
        answers = [an_answer("resp_1", status=status), an_answer("resp_2", status=status)]
        await any_database.calls.answer("t", answers)
    for webhook in ("webhook_1", "webhook_2"):
        assert await types(any_database, webhook) == ["response.incomplete"]


@pytest.mark.parametrize("end", ["delivered", "failed", "given up"])
async def test_the_end_of_a_delivery_about_a_job_removes_its_body(any_database: Database, end: str) -> None:
    table = any_database.webhook_deliveries
    await create(any_database, an_endpoint(batch_id="job_1", events=list(CALL_EVENTS)))
    await opened(any_database, "job_1", notifies=True)
    await any_database.calls.answer("t", [an_answer("job_1")])
    [delivery] = await recorded(any_database)
    await table.keep_body("t", delivery.id, b"result")
    await attempted(any_database, delivery, attempt(20))
    [pending] = await recorded(any_database)
    assert (pending.status, pending.body) == ("pending", b"result")
    if end == "given up":
        await table.give_up("t", delivery.id, "disabled")
    else:
        await attempted(
            any_database, delivery, attempt(30, reason="" if end == "delivered" else "no"), is_last=True
        )
    [ended] = await recorded(any_database)
    assert (ended.status, ended.body) == ("delivered" if end == "delivered" else "failed", None)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (BatchStatus.CANCELLED, CallStatus.CANCELLED),
        (BatchStatus.EXPIRED, CallStatus.FAILED),
        (BatchStatus.FAILED, CallStatus.FAILED),
    ],
)
async def test_a_batch_that_ends_ends_its_calls_and_takes_no_more(
    any_database: Database, end: BatchStatus, expected: CallStatus
) -> None:
    await create(any_database, an_endpoint())
    await opened(any_database, "resp_1", "resp_2", notifies=True)
    await any_database.calls.answer("t", [an_answer("resp_2")])
    error = ValidationError(code="c", message="why")
    await any_database.batch_ends.end_without_files("t", "batch_1", end, [error], after(20))
    call = await any_database.calls.get("t", "resp_1")
    assert call is not None
    assert (call.status, call.answer, call.error) == (expected, None, "why")
    assert await status_of(any_database, "resp_2") is CallStatus.COMPLETED
    assert await any_database.calls.insert(a_call("resp_3")) is None
    # The batch itself is no event.
    assert await types(any_database) == ["response.completed", f"response.{expected}"]


async def test_calls_of_a_batch_whose_files_follow_are_not_ended_yet(any_database: Database) -> None:
    await opened(any_database, "resp_1")
    soon = datetime.now(UTC) + timedelta(hours=1)
    end, no_errors = BatchStatus.EXPIRED, list[ValidationError]()
    await any_database.batch_ends.end_without_files(
        "t", "batch_1", end, no_errors, after(20), files_until=soon
    )
    assert await status_of(any_database) is CallStatus.QUEUED
    await any_database.batch_ends.abandon_files("t", "batch_1", no_errors)
    assert await status_of(any_database) is CallStatus.FAILED


async def test_a_call_is_in_progress_while_its_batch_is(any_database: Database) -> None:
    await opened(any_database, "resp_1")
    await any_database.batches.start("t", "batch_1", total=1, models=[], at=after(10))
    assert await status_of(any_database) is CallStatus.IN_PROGRESS
    await any_database.calls.answer("t", [an_answer()])
    assert await status_of(any_database) is CallStatus.COMPLETED
