"""How batches end, and which counts they have until then.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

import asyncio

import pytest

from batchwright.contracts.temporal_payloads.batch import ErrorCount, ErrorExample, ModelCounts, ModelUsage
from batchwright.contracts.terms import BatchStatus, Usage, ValidationError
from batchwright.database.database import Database
from batchwright.database.errors import UnknownBatch
from batchwright.database.records import EndedBatch
from tests.integration.database.rows import (
    MODELS,
    START,
    a_file,
    a_running_batch,
    after,
    an_order,
    an_outcome,
    slice_progress,
)

ENDS = [BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED]


async def test_finishing_sets_files_counts_usage_and_time(any_database: Database) -> None:
    running = await a_running_batch(any_database)
    await any_database.batches.start_finalizing("t", "batch_1", after(20))
    outcome = an_outcome()
    row, _ = await any_database.batch_ends.finish("t", "batch_1", outcome, after(30))
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
            "model_usage": outcome.model_usage,
        }
    )
    assert await any_database.batches.get("t", "batch_1") == row
    assert await any_database.files.get("t", "file-out") == outcome.output
    assert await any_database.files.get("t", "file-err") == outcome.error


@pytest.mark.parametrize("status", ENDS)
@pytest.mark.parametrize("before", ["validating", "in_progress", "finalizing"])
async def test_every_live_status_may_end_in_every_way(
    any_database: Database, before: str, status: BatchStatus
) -> None:
    await any_database.batches.upsert(an_order())
    if before != "validating":
        await any_database.batches.start("t", "batch_1", total=1, models=[], at=START)
    if before == "finalizing":
        await any_database.batches.start_finalizing("t", "batch_1", START)
    row, _ = await any_database.batch_ends.finish("t", "batch_1", an_outcome(status), after(5))
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


async def test_a_batch_ends_once_and_late_attempts_change_nothing(any_database: Database) -> None:
    await a_running_batch(any_database)
    ended, _ = await any_database.batch_ends.finish("t", "batch_1", an_outcome(), after(30))
    late = an_outcome(
        BatchStatus.EXPIRED,
        completed=0,
        output=a_file("file-out", storage_key="x/out/2"),
        error=a_file("file-late"),
    )
    unmoved = EndedBatch(ended, moved=False)
    assert await any_database.batch_ends.finish("t", "batch_1", late, after(40)) == unmoved
    assert await any_database.batch_ends.add_files("t", "batch_1", late) == unmoved
    assert await any_database.batch_ends.abandon_files("t", "batch_1", []) == unmoved
    assert (
        await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(40))
        == unmoved
    )
    assert not await any_database.batches.start_finalizing("t", "batch_1", after(40))
    assert await any_database.batches.get("t", "batch_1") == ended
    assert await any_database.files.get("t", "file-out") == an_outcome().output
    assert await any_database.files.get("t", "file-late") is None


async def test_of_attempts_at_the_same_time_one_wins_whole(any_database: Database) -> None:
    await a_running_batch(any_database)
    attempts = [
        an_outcome(completed=number, output=a_file("file-out", storage_key=f"x/{number}"), error=None)
        for number in range(5)
    ]
    finish = any_database.batch_ends.finish
    ends = await asyncio.gather(*(finish("t", "batch_1", attempt, after(30)) for attempt in attempts))
    assert len({row.completed for row, _ in ends}) == 1
    assert [moved for _, moved in ends].count(True) == 1
    output = await any_database.files.get("t", "file-out")
    assert output is not None
    assert output.storage_key == f"x/{ends[0].row.completed}"


async def test_finishing_a_batch_without_a_row_is_an_error(any_database: Database) -> None:
    with pytest.raises(UnknownBatch, match="batch_1"):
        await any_database.batch_ends.finish("t", "batch_1", an_outcome(), START)
    assert await any_database.files.get("t", "file-out") is None


async def test_a_batch_without_successes_has_no_output_file(any_database: Database) -> None:
    await a_running_batch(any_database)
    row, _ = await any_database.batch_ends.finish("t", "batch_1", an_outcome(output=None), after(30))
    assert (row.output_file_id, row.error_file_id) == (None, "file-err")


async def test_live_counts_are_the_sum_over_the_slices(any_database: Database) -> None:
    running = await a_running_batch(any_database)
    usage = Usage(input_tokens=3, cached_tokens=1, output_tokens=2, reasoning_tokens=1)
    await any_database.progress.record(
        [
            slice_progress(0, completed=1, failed=1, usage=usage),
            slice_progress(1, completed=1, usage=usage),
            slice_progress(0, model="b", completed=4, failed=2),
        ]
    )
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row == running.model_copy(
        update={
            "completed": 6,
            "failed": 4,  # with the unserved line
            "usage": usage + usage,
            "model_usage": [
                ModelUsage(model="a", requests=2, **(usage + usage).model_dump()),
                ModelUsage(model="b", requests=4),
            ],
            "models": [
                ModelCounts(model="b", lines=6, completed=4, failed=2),
                ModelCounts(model="a", lines=3, completed=2, failed=1),
            ],
        }
    )
    assert await any_database.batch_list.page("t", limit=1, after=None) == ([row], False)


def an_error(code: str, model: str | None, count: int, custom_id: str = "c") -> ErrorCount:
    example = ErrorExample(custom_id=custom_id, message="why \u0000 \\u0000")
    return ErrorCount(code=code, model=model, count=count, example=example)


def stored(error: ErrorCount) -> ErrorCount:
    """Return the error in the form that PostgreSQL stores: without NUL characters."""
    example = error.example.model_copy(update={"message": "why \ufffd \\u0000"})
    return error.model_copy(update={"example": example})


async def test_live_errors_are_those_of_ingestion_and_of_the_slices_by_code_and_model(
    database: Database,
) -> None:
    await database.batches.upsert(an_order())
    refused = an_error("model_not_found", "x", 4)
    await database.batches.start(
        "t", "batch_1", total=20, models=MODELS, at=after(10), unserved=4, errors=[refused]
    )
    await database.progress.record(
        [
            slice_progress(
                1, failed=3, errors=[an_error("http_400", None, 2), an_error("http_404", None, 1)]
            ),
            slice_progress(0, failed=1, errors=[an_error("http_400", None, 1, "first")]),
            slice_progress(0, model="b", failed=1, errors=[an_error("http_400", None, 1)]),
        ]
    )
    row = await database.batches.get("t", "batch_1")
    (listed,), _ = await database.batch_list.page("t", limit=1, after=None)
    assert row is not None
    assert listed.errors_summary == [stored(refused)]
    assert row.errors_summary == [
        stored(error)
        for error in (
            refused,
            an_error("http_400", "a", 3, "first"),
            an_error("http_400", "b", 1),
            an_error("http_404", "a", 1),
        )
    ]


async def test_errors_of_a_finished_batch_are_those_of_its_files(any_database: Database) -> None:
    await a_running_batch(any_database)
    await any_database.progress.record([slice_progress(failed=1, errors=[an_error("http_400", None, 1)])])
    final = ErrorCount(code="batch_expired", model="a", count=2)
    outcome = an_outcome(BatchStatus.EXPIRED, errors_summary=[final])
    row, _ = await any_database.batch_ends.finish("t", "batch_1", outcome, after(30))
    assert row.errors_summary == [final]
    assert await any_database.batches.get("t", "batch_1") == row


async def test_errors_of_an_end_without_files_are_those_reported_last(any_database: Database) -> None:
    await a_running_batch(any_database)
    reported = ErrorCount(code="http_400", count=1)
    await any_database.progress.record([slice_progress(failed=1, errors=[reported])])
    row, _ = await any_database.batch_ends.end_without_files(
        "t", "batch_1", BatchStatus.EXPIRED, [], after(30), files_until=after(60)
    )
    assert row.errors_summary == [reported.model_copy(update={"model": "a"})]
    final = ErrorCount(code="http_400", model="a", count=2)
    row, _ = await any_database.batch_ends.add_files("t", "batch_1", an_outcome(errors_summary=[final]))
    assert row.errors_summary == [final]


@pytest.mark.parametrize(
    ("generation", "attempt", "counts"), [(1, 1, 9), (0, 4, 9), (0, 3, 9), (0, 2, 5), (-1, 9, 5)]
)
async def test_an_older_attempt_never_overwrites_a_newer(
    any_database: Database, generation: int, attempt: int, counts: int
) -> None:
    await a_running_batch(any_database)
    await any_database.progress.record([slice_progress(generation=0, attempt=3, completed=5)])
    await any_database.progress.record([slice_progress(generation=generation, attempt=attempt, completed=9)])
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.completed == counts


async def test_of_two_concurrent_reports_of_a_slice_the_newest_counts(any_database: Database) -> None:
    await a_running_batch(any_database)
    rows = [
        slice_progress(attempt=2, completed=3),
        slice_progress(attempt=3, completed=5),
        slice_progress(attempt=3, completed=6),
        slice_progress(),
    ]
    await any_database.progress.record(rows)
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.completed == 6


async def test_empty_reports_and_reports_for_unknown_batches_are_ignored(any_database: Database) -> None:
    await any_database.progress.record([])
    await any_database.progress.record([slice_progress(batch_id="batch_unknown")])
    assert await any_database.batches.get("t", "batch_unknown") is None


@pytest.mark.parametrize("status", ENDS)
async def test_models_of_a_finished_batch_have_the_counts_of_its_files(
    any_database: Database, status: BatchStatus
) -> None:
    """No backend served model c when the batch was planned. A worker reports progress of model b after the
    end.
    """
    await any_database.batches.upsert(an_order())
    begun = [*MODELS, ModelCounts(model="c", lines=1, failed=1)]
    await any_database.batches.start("t", "batch_1", total=10, models=begun, at=START, unserved=1)
    await any_database.progress.record(
        [slice_progress(model="b", completed=1), slice_progress(model="c", completed=1)]
    )
    exact = [
        ModelCounts(model="a", lines=3, completed=3),
        ModelCounts(model="b", lines=6, completed=5, failed=1),
    ]
    row, _ = await any_database.batch_ends.finish("t", "batch_1", an_outcome(status, models=exact), after(30))
    assert row.models == [exact[1], exact[0], ModelCounts(model="c", lines=1, failed=1)]
    assert row.completed == sum(model.completed for model in row.models)
    assert row.failed == sum(model.failed for model in row.models)
    assert await any_database.batches.get("t", "batch_1") == row


async def test_final_counts_come_from_finalization_and_models_keep_their_reported_counts(
    any_database: Database,
) -> None:
    await a_running_batch(any_database)
    await any_database.progress.record([slice_progress(completed=3)])
    row, _ = await any_database.batch_ends.finish("t", "batch_1", an_outcome(), after(30))
    await any_database.progress.record([slice_progress(attempt=2, completed=99)])
    assert (row.completed, row.failed) == (8, 2)
    assert row.models == [MODELS[0], ModelCounts(model="a", lines=3, completed=3)]
    assert await any_database.batches.get("t", "batch_1") == row


async def test_an_end_without_files_has_the_reported_counts(any_database: Database) -> None:
    running = await a_running_batch(any_database)
    usage = Usage(input_tokens=3)
    errors = [ValidationError(code="storage_unavailable", message="no space")]
    await any_database.progress.record([slice_progress(completed=2, failed=1, usage=usage)])
    row, _ = await any_database.batch_ends.end_without_files(
        "t", "batch_1", BatchStatus.FAILED, errors, after(30)
    )
    assert row == running.model_copy(
        update={
            "status": BatchStatus.FAILED,
            "failed_at": after(30),
            "errors": errors,
            "completed": 2,
            "failed": 2,
            "usage": usage,
            "model_usage": [ModelUsage(model="a", requests=2, input_tokens=3)],
            "models": [MODELS[0], ModelCounts(model="a", lines=3, completed=2, failed=1)],
        }
    )
    assert await any_database.batches.get("t", "batch_1") == row


async def test_the_total_is_never_less_than_the_lines_of_the_files(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    row, _ = await any_database.batch_ends.finish("t", "batch_1", an_outcome(BatchStatus.EXPIRED), after(30))
    assert row.total == 10


async def test_samples_of_progress_show_its_start_its_course_and_its_end(any_database: Database) -> None:
    """Lines that ingestion settled are counted from the start. A sample that follows the last one too soon is
    left out.
    """
    await any_database.batches.upsert(an_order())
    await any_database.batches.start(
        "t", "batch_1", total=10, models=MODELS, at=after(0), unserved=2, completed=1
    )
    progress = any_database.progress
    await progress.record([slice_progress(completed=2, failed=1)])
    for seconds in (9, 10, 19, 20, 1000, 1024, 1025):
        await progress.sample(after(seconds))
    await progress.record([slice_progress(completed=4, failed=1), slice_progress(1, completed=1)])
    await any_database.batches.start_finalizing("t", "batch_1", after(1026))
    await progress.sample(after(2000))
    assert await progress.samples("t", "batch_1") == [
        *((after(0), 3), (after(10), 6), (after(20), 6), (after(1000), 6), (after(1026), 9))
    ]
    assert await progress.samples("other", "batch_1") == []
