"""The consistency check: every difference is found, and only what is safe is repaired."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.activities.consistency.check import ComparedSources, ConsistencyCheck
from batchwright.activities.consistency.report import ConsistencyReport, DifferenceKind
from batchwright.activities.consistency.workflow_runs import BatchRun, BatchRunSource
from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchPolicy, BatchResult, RollingBatch
from batchwright.contracts.temporal_payloads.ingestion import IngestResult, ModelShare
from batchwright.contracts.temporal_payloads.retention import RetentionKind
from batchwright.contracts.terms import BatchStatus, Endpoint, Usage
from batchwright.database.records import BatchOutcome, BatchRow, FileRow
from batchwright.rules.calls.call_lines import CALLS_PURPOSE
from batchwright.rules.ids import derived_file_id
from batchwright.rules.stored_objects import object_keys
from batchwright.settings import load
from tests.activities.retention.runner import RetentionRunner
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.storage import MemoryStorage

NOW = datetime.now(UTC)
EARLIER = NOW - timedelta(hours=1)
ID = "batch_" + "0" * 32


def an_order() -> BatchOrder:
    return BatchOrder(
        batch_id=ID,
        tenant="acme",
        input_file_id="file-in",
        endpoint=Endpoint.CHAT_COMPLETIONS,
        completion_window="24h",
        created_at=EARLIER,
        deadline=NOW + timedelta(hours=23),
    )


class MemoryBatchRunSource(BatchRunSource):
    def __init__(self) -> None:
        self.runs: dict[str, BatchRun] = {}
        self.started: list[str] = []
        self.started_order: BatchOrder | None = an_order()
        self.planned: IngestResult | None = None
        self.is_forgetting = False  # True if Temporal deletes each run after it was listed

    async def all(self) -> AsyncIterator[BatchRun]:
        for run in list(self.runs.values()):
            yield run

    async def find(self, batch_id: str) -> BatchRun | None:
        return None if self.is_forgetting else self.runs.get(batch_id)

    async def order(self, batch_id: str) -> BatchOrder | None:
        return self.started_order

    async def ingested(self, batch_id: str) -> IngestResult | None:
        return self.planned

    async def start(self, order: BatchOrder) -> None:
        self.started.append(order.batch_id)


class ConsistencyFixture:
    def __init__(self) -> None:
        self.database, self.storage, self.runs = MemoryDatabase(), MemoryStorage(), MemoryBatchRunSource()

    async def check(self, *, repair: bool = True) -> ConsistencyReport:
        return await self.begun(repair=repair).run()

    def begun(self, *, repair: bool = True) -> ConsistencyCheck:
        return ConsistencyCheck(
            ComparedSources(self.database, self.storage, self.runs, load(), now=NOW, repair=repair)
        )

    async def live(self) -> None:
        await self.database.batches.upsert(an_order())

    def run(self, ended: str = "", result: BatchResult | None = None) -> None:
        at = EARLIER + timedelta(minutes=30) if ended else None
        self.runs.runs[ID] = BatchRun(ID, "acme", EARLIER, ended, at, result)

    def run_sends_lines(self) -> None:
        self.runs.runs[ID] = BatchRun(ID, "acme", EARLIER, status=BatchStatus.IN_PROGRESS)
        share = ModelShare(model="m", safe_model="m", lines=4, slices=1, duplicates=1)
        share = share.model_copy(update={"resumed_completed": 1, "resumed_failed": 2})
        self.runs.planned = IngestResult(ingest_prefix="p", models=[share], total=10, unserved=2, resumed=3)

    async def write(self, kind: str) -> str:
        id = derived_file_id(ID, kind)
        await self.storage.put(object_keys.output_key("acme", id, "nonce"), b"line\n")
        return id

    async def row(self) -> BatchRow:
        row = await self.database.batches.get("acme", ID)
        assert row is not None
        return row


@pytest.fixture
def fixture() -> ConsistencyFixture:
    return ConsistencyFixture()


def kinds(report: ConsistencyReport) -> list[DifferenceKind]:
    return [one.kind for one in report.differences]


async def test_a_row_that_matches_its_run_is_no_difference(fixture: ConsistencyFixture) -> None:
    await fixture.live()
    fixture.run()
    report = await fixture.check()
    assert (report.differences, report.rows, report.runs) == ([], 1, 1)


async def test_a_live_row_that_has_no_run_gets_one(fixture: ConsistencyFixture) -> None:
    await fixture.live()
    report = await fixture.check()
    assert (kinds(report), report.left) == ([DifferenceKind.RUN_MISSING], 0)
    assert fixture.runs.started == [ID]


async def test_nothing_is_repaired_unless_requested(fixture: ConsistencyFixture) -> None:
    await fixture.live()
    report = await fixture.check(repair=False)
    assert report.left == 1
    assert fixture.runs.started == []


async def test_a_row_older_than_the_end_of_its_run_gets_the_end_and_files_of_the_run(
    fixture: ConsistencyFixture,
) -> None:
    await fixture.live()
    output = await fixture.write("output")
    fixture.run("completed", BatchResult(status=BatchStatus.COMPLETED, total=1, completed=1))
    report = await fixture.check()
    row = await fixture.row()
    file = await fixture.database.files.get("acme", output)
    assert (kinds(report), report.left) == ([DifferenceKind.RUN_ENDED], 0)
    assert (row.status, row.output_file_id, row.completed) == (BatchStatus.COMPLETED, output, 1)
    assert file is not None
    assert (file.bytes, file.expires_at) == (5, EARLIER + timedelta(minutes=30, days=30))


async def test_restored_files_of_single_calls_are_not_listed_as_outputs_of_a_batch(
    fixture: ConsistencyFixture,
) -> None:
    policy = BatchPolicy(rolling=RollingBatch(group="g", open_seconds=0))
    order = fixture.runs.started_order = an_order().model_copy(update={"policy": policy})
    await fixture.database.batches.upsert(order)
    output = await fixture.write("output")
    fixture.run("completed", BatchResult(status=BatchStatus.COMPLETED, total=1, completed=1))
    await fixture.check()
    file = await fixture.database.files.get("acme", output)
    assert file is not None
    assert file.purpose == CALLS_PURPOSE


async def test_a_row_that_lost_its_files_and_its_run_is_reported_and_not_repaired(
    fixture: ConsistencyFixture,
) -> None:
    await fixture.live()
    fixture.run("completed", BatchResult(status=BatchStatus.COMPLETED, total=1, completed=1))
    report = await fixture.check()
    assert report.left == 1
    assert not (await fixture.row()).status.is_terminal


@pytest.mark.parametrize(
    ("ended", "how"),
    [("terminated", "was ended by an operator"), ("timed_out", "ended unexpectedly")],
)
async def test_a_run_without_a_result_leaves_a_failed_batch_with_its_settled_lines(
    fixture: ConsistencyFixture, ended: str, how: str
) -> None:
    await fixture.live()
    fixture.run(ended)
    report = await fixture.check()
    row = await fixture.row()
    assert report.left == 0
    assert (row.status, row.errors[0].code) == (BatchStatus.FAILED, "system_error")
    assert row.errors[0].message == f"The batch's run {how} ({ended})."
    assert row.results_kept_until is not None
    assert row.results_kept_until > NOW


async def test_a_missing_row_of_an_ended_run_is_created_with_its_end(fixture: ConsistencyFixture) -> None:
    output = await fixture.write("output")
    fixture.run("completed", BatchResult(status=BatchStatus.EXPIRED, total=1, completed=1))
    report = await fixture.check()
    row = await fixture.row()
    assert kinds(report) == [DifferenceKind.ROW_MISSING, DifferenceKind.RUN_ENDED]
    assert report.left == 0
    assert (row.status, row.output_file_id) == (BatchStatus.EXPIRED, output)


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_no_row_is_created_for_an_ended_run_whose_end_cannot_be_stored(
    fixture: ConsistencyFixture, is_forgotten: bool
) -> None:
    """The output file of the run is not in storage, or Temporal has deleted the run meanwhile. A new row
    would stay live, and a later consistency check would start the batch again.
    """
    fixture.run("completed", BatchResult(status=BatchStatus.COMPLETED, total=1, completed=1))
    fixture.runs.is_forgetting = is_forgotten
    report = await fixture.check()
    assert (kinds(report), report.left) == ([DifferenceKind.ROW_MISSING], 1)
    assert fixture.database.rows.batches == {}


@pytest.mark.parametrize("is_lost", [False, True])
async def test_an_open_run_that_sends_lines_is_found_by_the_workers_again(
    fixture: ConsistencyFixture, is_lost: bool
) -> None:
    """Workers find a batch only by the models in its database row, which ingestion writes. Here the database
    has lost these models (`is_lost` is False) or the whole row (`is_lost` is True).
    """
    if not is_lost:
        await fixture.live()
    fixture.run_sends_lines()
    report = await fixture.check()
    row = await fixture.row()
    kind = DifferenceKind.ROW_MISSING if is_lost else DifferenceKind.ROW_OUTDATED
    assert (kinds(report), report.left) == ([kind], 0)
    assert await fixture.database.fleet.awaited_models(NOW) == {"m": {"acme": 1}}
    assert (row.status, row.total, row.completed, row.failed) == (BatchStatus.IN_PROGRESS, 10, 1, 4)
    assert (await fixture.check()).differences == []


async def test_an_outdated_row_is_not_repaired_if_the_history_of_its_run_has_no_counts(
    fixture: ConsistencyFixture,
) -> None:
    await fixture.live()
    fixture.run_sends_lines()
    fixture.runs.planned = None
    report = await fixture.check()
    assert (kinds(report), report.left) == ([DifferenceKind.ROW_OUTDATED], 1)
    assert (await fixture.row()).status is BatchStatus.VALIDATING


async def test_a_row_is_not_outdated_while_its_input_is_read(fixture: ConsistencyFixture) -> None:
    await fixture.live()
    fixture.runs.runs[ID] = BatchRun(ID, "acme", EARLIER, status=BatchStatus.VALIDATING)
    assert (await fixture.check()).differences == []


async def test_a_batch_that_its_tenant_deleted_is_no_difference_and_stays_deleted(
    fixture: ConsistencyFixture,
) -> None:
    await fixture.live()
    fixture.run("completed", BatchResult(status=BatchStatus.COMPLETED))
    await fixture.database.batch_ends.end_without_files("acme", ID, BatchStatus.FAILED, [], NOW)
    assert await fixture.database.batch_deletions.remove("acme", ID, NOW)
    report = await fixture.check()
    assert (report.differences, report.runs) == ([], 1)
    assert fixture.database.rows.batches == {}


async def test_a_run_that_temporal_deletes_during_the_consistency_check_is_no_difference(
    fixture: ConsistencyFixture,
) -> None:
    fixture.run("completed")
    fixture.runs.started_order = None
    report = await fixture.check()
    assert (report.differences, report.runs) == ([], 1)


@pytest.mark.parametrize(("is_rolling", "age"), [(True, timedelta(days=2)), (False, timedelta(days=90))])
async def test_a_batch_whose_row_retention_has_deleted_is_no_difference_and_is_not_restored(
    fixture: ConsistencyFixture, is_rolling: bool, age: timedelta
) -> None:
    """Temporal may keep the run of a batch for longer than retention keeps the row of the batch."""
    ended_at = NOW - age - timedelta(hours=1)
    policy = BatchPolicy(rolling=RollingBatch(group="g", open_seconds=0) if is_rolling else None)
    changes = {"policy": policy, "created_at": ended_at, "deadline": ended_at}
    order = fixture.runs.started_order = an_order().model_copy(update=changes)
    await fixture.database.batches.upsert(order)
    await fixture.database.batch_ends.end_without_files("acme", ID, BatchStatus.COMPLETED, [], ended_at)
    retention = RetentionRunner(fixture.database, fixture.storage)
    await retention.counts([RetentionKind.BATCHES, RetentionKind.METADATA], NOW)
    assert fixture.database.rows.batches == {}
    result = BatchResult(status=BatchStatus.COMPLETED, total=1, completed=1)
    fixture.runs.runs[ID] = BatchRun(ID, "acme", ended_at, "completed", ended_at, result)
    assert (await fixture.check()).differences == []
    assert fixture.database.rows.batches == {}


async def test_batches_that_begin_or_end_during_the_consistency_check_are_no_difference(
    fixture: ConsistencyFixture,
) -> None:
    await fixture.live()
    fixture.runs.runs[ID] = BatchRun(ID, "acme", EARLIER, "completed", NOW)
    fixture.runs.runs["batch_new"] = BatchRun("batch_new", "acme", NOW)
    assert (await fixture.check()).differences == []


async def test_wrong_counts_and_files_without_objects_are_reported(
    fixture: ConsistencyFixture,
) -> None:
    await fixture.live()
    fixture.run("completed")
    id = derived_file_id(ID, "output")
    file = FileRow(
        id=id,
        tenant="acme",
        purpose="batch_output",
        filename="x",
        bytes=1,
        created_at=EARLIER,
        storage_key="gone",
    )
    outcome = BatchOutcome(status=BatchStatus.COMPLETED, completed=1, failed=0, usage=Usage(), output=file)
    await fixture.database.batches.start("acme", ID, total=2, models=[], at=EARLIER)
    await fixture.database.batch_ends.finish("acme", ID, outcome, EARLIER)
    report = await fixture.check()
    assert kinds(report) == [DifferenceKind.COUNTS, DifferenceKind.FILE_MISSING]
    assert report.left == 2


async def files_pending(fixture: ConsistencyFixture) -> None:
    await fixture.live()
    await fixture.database.batch_ends.end_without_files(
        "acme", ID, BatchStatus.EXPIRED, [], EARLIER, files_until=NOW + timedelta(days=9)
    )


async def test_a_batch_whose_files_are_pending_may_have_an_open_run(fixture: ConsistencyFixture) -> None:
    await files_pending(fixture)
    fixture.run()
    assert (await fixture.check()).differences == []


async def test_pending_files_of_a_run_that_was_terminated_are_given_up(fixture: ConsistencyFixture) -> None:
    await files_pending(fixture)
    fixture.run("terminated")
    report = await fixture.check()
    row = await fixture.row()
    assert (kinds(report), report.left) == ([DifferenceKind.RUN_ENDED], 0)
    assert (row.status, row.files_pending) == (BatchStatus.EXPIRED, False)
    assert row.results_kept_until is not None


async def test_pending_files_that_a_completed_run_has_not_left_are_said_to_be_missing(
    fixture: ConsistencyFixture,
) -> None:
    await files_pending(fixture)
    fixture.run("completed", BatchResult(status=BatchStatus.EXPIRED, total=1, completed=1))
    await fixture.check()
    row = await fixture.row()
    assert row.errors[-1].message == "The batch's run has ended, and its files are not in storage."
    assert not row.files_pending


async def test_pending_files_that_the_run_has_written_are_added(fixture: ConsistencyFixture) -> None:
    await files_pending(fixture)
    output = await fixture.write("output")
    fixture.run("completed", BatchResult(status=BatchStatus.EXPIRED, total=1, completed=1))
    report = await fixture.check()
    row = await fixture.row()
    assert report.left == 0
    assert (row.status, row.output_file_id, row.files_pending) == (BatchStatus.EXPIRED, output, False)
