"""How batches end, and what is counted until then; `any_database` runs it on each database."""

import asyncio

import pytest

from batchwright.contracts.openai import BatchStatus, Usage, ValidationError
from batchwright.database.base import DatabaseLike
from batchwright.database.errors import UnknownBatch
from batchwright.database.rows import ModelCount
from tests.integration.rows import MODELS, START, a_file, a_running_batch, after, an_order, an_outcome, told

ENDS = [BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED]


async def test_finishing_sets_files_counts_usage_and_time(any_database: DatabaseLike) -> None:
    running = await a_running_batch(any_database)
    await any_database.batches.start_finalizing("t", "batch_1", after(20))
    outcome = an_outcome()
    row = await any_database.batches.finish("t", "batch_1", outcome, after(30))
    assert row == running.model_copy(
        update={
            "status": BatchStatus.COMPLETED,
            "finalizing_at": after(20),
            "completed_at": after(30),
            "output_file_id": "file-out",
            "error_file_id": "file-err",
            "completed": 8,
            "failed": 2,
            "usage": outcome.usage,
        }
    )
    assert await any_database.batches.get("t", "batch_1") == row
    assert await any_database.files.get("t", "file-out") == outcome.output
    assert await any_database.files.get("t", "file-err") == outcome.error


@pytest.mark.parametrize("status", ENDS)
@pytest.mark.parametrize("before", ["validating", "in_progress", "finalizing"])
async def test_every_live_status_may_end_in_every_way(
    any_database: DatabaseLike, before: str, status: BatchStatus
) -> None:
    await any_database.batches.upsert(an_order())
    if before != "validating":
        await any_database.batches.begin("t", "batch_1", total=1, models=[], at=START)
    if before == "finalizing":
        await any_database.batches.start_finalizing("t", "batch_1", START)
    row = await any_database.batches.finish("t", "batch_1", an_outcome(status), after(5))
    times = {
        BatchStatus.COMPLETED: row.completed_at,
        BatchStatus.FAILED: row.failed_at,
        BatchStatus.EXPIRED: row.expired_at,
        BatchStatus.CANCELLED: row.cancelled_at,
    }
    assert row.status is status
    assert {end for end, time in times.items() if time is not None} == {status}
    assert times[status] == after(5)
    assert row.cancel_requested_at == (after(5) if status is BatchStatus.CANCELLED else None)


async def test_a_batch_ends_once_and_late_attempts_change_nothing(any_database: DatabaseLike) -> None:
    await a_running_batch(any_database)
    ended = await any_database.batches.finish("t", "batch_1", an_outcome(), after(30))
    late = an_outcome(
        BatchStatus.EXPIRED,
        completed=0,
        output=a_file("file-out", storage_key="x/out/2"),
        error=a_file("file-late"),
    )
    assert await any_database.batches.finish("t", "batch_1", late, after(40)) == ended
    assert await any_database.batches.end("t", "batch_1", BatchStatus.FAILED, [], after(40)) == ended
    assert not await any_database.batches.start_finalizing("t", "batch_1", after(40))
    assert await any_database.batches.get("t", "batch_1") == ended
    assert await any_database.files.get("t", "file-out") == an_outcome().output
    assert await any_database.files.get("t", "file-late") is None


async def test_of_attempts_at_the_same_time_one_wins_whole(any_database: DatabaseLike) -> None:
    await a_running_batch(any_database)
    attempts = [
        an_outcome(completed=number, output=a_file("file-out", storage_key=f"x/{number}"), error=None)
        for number in range(5)
    ]
    finish = any_database.batches.finish
    rows = await asyncio.gather(*(finish("t", "batch_1", attempt, after(30)) for attempt in attempts))
    assert len({row.completed for row in rows}) == 1
    output = await any_database.files.get("t", "file-out")
    assert output is not None
    assert output.storage_key == f"x/{rows[0].completed}"


async def test_finishing_a_batch_without_a_row_is_an_error(any_database: DatabaseLike) -> None:
    with pytest.raises(UnknownBatch, match="batch_1"):
        await any_database.batches.finish("t", "batch_1", an_outcome(), START)
    assert await any_database.files.get("t", "file-out") is None


async def test_a_batch_without_successes_has_no_output_file(any_database: DatabaseLike) -> None:
    await a_running_batch(any_database)
    row = await any_database.batches.finish("t", "batch_1", an_outcome(output=None), after(30))
    assert (row.output_file_id, row.error_file_id) == (None, "file-err")


async def test_live_counts_are_the_sum_over_the_slices(any_database: DatabaseLike) -> None:
    running = await a_running_batch(any_database)
    usage = Usage(input_tokens=3, cached_tokens=1, output_tokens=2, reasoning_tokens=1)
    await any_database.progress.record(
        [
            told(0, completed=1, failed=1, usage=usage),
            told(1, completed=1, usage=usage),
            told(0, model="b", completed=4, failed=2),
        ]
    )
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row == running.model_copy(
        update={
            "completed": 6,
            "failed": 4,  # with the unserved line
            "usage": usage + usage,
            "models": [
                ModelCount(model="b", lines=6, completed=4, failed=2),
                ModelCount(model="a", lines=3, completed=2, failed=1),
            ],
        }
    )
    assert await any_database.batches.page("t", limit=1, after=None) == ([row], False)
    assert await any_database.progress.totals("t", "batch_1") == row.models


async def test_totals_before_anything_is_told_are_the_models_alone(any_database: DatabaseLike) -> None:
    await a_running_batch(any_database)
    assert await any_database.progress.totals("t", "batch_1") == MODELS
    assert await any_database.progress.totals("other", "batch_1") == []


@pytest.mark.parametrize(
    ("generation", "attempt", "counts"), [(1, 1, 9), (0, 4, 9), (0, 3, 9), (0, 2, 5), (-1, 9, 5)]
)
async def test_an_older_attempt_never_overwrites_a_newer(
    any_database: DatabaseLike, generation: int, attempt: int, counts: int
) -> None:
    await a_running_batch(any_database)
    await any_database.progress.record([told(generation=0, attempt=3, completed=5)])
    await any_database.progress.record([told(generation=generation, attempt=attempt, completed=9)])
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.completed == counts


async def test_of_one_slice_told_twice_at_once_the_newest_counts(any_database: DatabaseLike) -> None:
    await a_running_batch(any_database)
    rows = [told(attempt=2, completed=3), told(attempt=3, completed=5), told(attempt=3, completed=6), told()]
    await any_database.progress.record(rows)
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.completed == 6


async def test_telling_nothing_or_of_unknown_batches_is_passed_over(any_database: DatabaseLike) -> None:
    await any_database.progress.record([])
    await any_database.progress.record([told(batch_id="batch_unknown")])
    assert await any_database.progress.totals("t", "batch_unknown") == []


@pytest.mark.parametrize("status", ENDS)
async def test_models_of_a_finished_batch_have_the_counts_of_its_files(
    any_database: DatabaseLike, status: BatchStatus
) -> None:
    """Model c was not served when the batch was planned; what b was told of comes too late."""
    await any_database.batches.upsert(an_order())
    begun = [*MODELS, ModelCount(model="c", lines=1, failed=1)]
    await any_database.batches.begin("t", "batch_1", total=10, models=begun, at=START, unserved=1)
    await any_database.progress.record([told(model="b", completed=1), told(model="c", completed=1)])
    exact = [
        ModelCount(model="a", lines=3, completed=3),
        ModelCount(model="b", lines=6, completed=5, failed=1),
    ]
    row = await any_database.batches.finish("t", "batch_1", an_outcome(status, models=exact), after(30))
    assert row.models == [exact[1], exact[0], ModelCount(model="c", lines=1, failed=1)]
    assert row.completed == sum(model.completed for model in row.models)
    assert row.failed == sum(model.failed for model in row.models)
    assert await any_database.batches.get("t", "batch_1") == row


async def test_finished_counts_are_finalizations_and_models_keep_what_was_told(
    any_database: DatabaseLike,
) -> None:
    await a_running_batch(any_database)
    await any_database.progress.record([told(completed=3)])
    row = await any_database.batches.finish("t", "batch_1", an_outcome(), after(30))
    await any_database.progress.record([told(attempt=2, completed=99)])
    assert (row.completed, row.failed) == (8, 2)
    assert row.models == [MODELS[0], ModelCount(model="a", lines=3, completed=3)]
    assert await any_database.batches.get("t", "batch_1") == row


async def test_an_end_without_files_counts_what_was_told(any_database: DatabaseLike) -> None:
    running = await a_running_batch(any_database)
    usage = Usage(input_tokens=3)
    errors = [ValidationError(code="storage_unavailable", message="no space")]
    await any_database.progress.record([told(completed=2, failed=1, usage=usage)])
    row = await any_database.batches.end("t", "batch_1", BatchStatus.FAILED, errors, after(30))
    assert row == running.model_copy(
        update={
            "status": BatchStatus.FAILED,
            "failed_at": after(30),
            "errors": errors,
            "completed": 2,
            "failed": 2,
            "usage": usage,
            "models": [MODELS[0], ModelCount(model="a", lines=3, completed=2, failed=1)],
        }
    )
    assert await any_database.batches.get("t", "batch_1") == row


async def test_the_total_is_never_less_than_the_lines_of_the_files(any_database: DatabaseLike) -> None:
    await any_database.batches.upsert(an_order())
    row = await any_database.batches.finish("t", "batch_1", an_outcome(BatchStatus.EXPIRED), after(30))
    assert row.total == 10
