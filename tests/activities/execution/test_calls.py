"""Slices of a rolling batch (a batch that collects single requests of clients, so-called calls).

The answer to a call is recorded as soon as it arrives. A cancelled call is not sent.
"""

import json

import pytest

from batchwright.contracts.calls import CallStatus, RollingBatch
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import BatchPolicy
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.database.errors import DatabaseUnavailable
from tests.activities.execution.fixture import (
    BATCH,
    TENANT,
    ExecutionFixture,
    line_of,
    ok,
    plan_slice,
    request,
)
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.database.call_rows import GROUP, a_call
from tests.integration.database.rows import an_order

pytestmark = pytest.mark.usefixtures("skipped_waits")


async def with_calls(count: int) -> tuple[ExecutionFixture, MemoryDatabase]:
    """Return a worker with a slice whose lines are `count` calls, and the database with these calls."""
    execution, database = ExecutionFixture(ok), MemoryDatabase()
    execution.context.calls = database.calls
    policy = BatchPolicy(rolling=RollingBatch(group=GROUP, open_seconds=0))
    await database.calls.open(
        GROUP, an_order(BATCH, TENANT).model_copy(update={"policy": policy}), max_batches=9
    )
    for number in range(count):
        assert await database.calls.insert(a_call(f"c-{number}", TENANT)) is not None
    await plan_slice(execution.storage, [line_of(number) for number in range(count)])
    return execution, database


async def statuses(database: MemoryDatabase, count: int) -> list[CallStatus]:
    found = [await database.calls.get(TENANT, f"c-{number}") for number in range(count)]
    return [call.status for call in found if call is not None]


async def test_the_answers_of_calls_are_recorded_as_they_are_stored() -> None:
    execution, database = await with_calls(3)
    assert await execution.run(request(answers_calls=True)) == SliceResult(finished=True, completed=3)
    assert await statuses(database, 3) == [CallStatus.COMPLETED] * 3
    stored = {record.payload for record in (await execution.settled()).values()}
    calls = [await database.calls.get(TENANT, f"c-{number}") for number in range(3)]
    assert {call.answer for call in calls if call is not None} == stored


async def test_a_cancelled_call_is_not_sent() -> None:
    execution, database = await with_calls(3)
    await database.calls.cancel(TENANT, "c-1")
    assert await execution.run(request(answers_calls=True)) == SliceResult(
        finished=True, completed=2, failed=1
    )
    assert sorted(execution.sent) == ["0", "2"]
    lines = [json.loads(record.payload) for record in (await execution.settled()).values()]
    errors = {line["custom_id"]: line["error"]["code"] for line in lines if line["error"]}
    assert errors == {"c-1": LineCode.BATCH_CANCELLED}


async def test_results_are_stored_although_their_answers_cannot_be_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    execution, database = await with_calls(2)

    async def answer(*_: object) -> None:
        raise DatabaseUnavailable("gone")

    monkeypatch.setattr(database.calls, "answer", answer)
    assert await execution.run(request(answers_calls=True)) == SliceResult(finished=True, completed=2)
    assert len(await execution.settled()) == 2
    assert await statuses(database, 2) == [CallStatus.QUEUED] * 2
