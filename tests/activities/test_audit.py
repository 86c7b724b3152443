"""The audit: every difference is found, and only what is safe is repaired."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from activities.audit.compare import Audit, Sources
from activities.audit.differences import Kind, Report
from activities.audit.runs import Run, Runs
from batchwright.contracts.batch import BatchOrder, BatchResult
from batchwright.contracts.openai import BatchStatus, Endpoint, Usage
from batchwright.database.rows import BatchRow, FileRow, Outcome
from batchwright.rules import keys
from batchwright.rules.ids import derived_file_id
from batchwright.settings import load
from tests.fakes.database import MemoryDatabase
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
        expires_at=NOW + timedelta(hours=23),
    )


class MemoryRuns(Runs):
    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.started: list[str] = []

    async def all(self) -> AsyncIterator[Run]:
        for run in list(self.runs.values()):
            yield run

    async def find(self, batch_id: str) -> Run | None:
        return self.runs.get(batch_id)

    async def order(self, batch_id: str) -> BatchOrder:
        return an_order()

    async def start(self, order: BatchOrder) -> None:
        self.started.append(order.batch_id)


class House:
    def __init__(self) -> None:
        self.database, self.storage, self.runs = MemoryDatabase(), MemoryStorage(), MemoryRuns()

    async def audit(self, *, repair: bool = True) -> Report:
        return await self.begun(repair=repair).run()

    def begun(self, *, repair: bool = True) -> Audit:
        return Audit(Sources(self.database, self.storage, self.runs, load(), now=NOW, repair=repair))

    async def live(self) -> None:
        await self.database.batches.upsert(an_order())

    def run(self, ended: str = "", result: BatchResult | None = None) -> None:
        at = EARLIER + timedelta(minutes=30) if ended else None
        self.runs.runs[ID] = Run(ID, "acme", EARLIER, ended, at, result)

    async def write(self, kind: str) -> str:
        id = derived_file_id(ID, kind)
        await self.storage.put(keys.output_key("acme", id, "nonce"), b"line\n")
        return id

    async def row(self) -> BatchRow:
        row = await self.database.batches.get("acme", ID)
        assert row is not None
        return row


@pytest.fixture
def house() -> House:
    return House()


def kinds(report: Report) -> list[Kind]:
    return [one.kind for one in report.differences]


async def test_a_row_and_its_run_are_as_they_should_be(house: House) -> None:
    await house.live()
    house.run()
    report = await house.audit()
    assert (report.differences, report.rows, report.runs) == ([], 1, 1)


async def test_a_live_row_that_has_no_run_gets_one(house: House) -> None:
    await house.live()
    report = await house.audit()
    assert (kinds(report), report.left) == ([Kind.RUN_MISSING], 0)
    assert house.runs.started == [ID]


async def test_nothing_is_repaired_that_nobody_asked_to(house: House) -> None:
    await house.live()
    report = await house.audit(repair=False)
    assert report.left == 1
    assert house.runs.started == []


async def test_a_row_older_than_the_end_of_its_run_ends_as_the_run_did_with_its_files(house: House) -> None:
    await house.live()
    output = await house.write("output")
    house.run("completed", BatchResult(status=BatchStatus.COMPLETED, total=1, completed=1))
    report = await house.audit()
    row = await house.row()
    file = await house.database.files.get("acme", output)
    assert (kinds(report), report.left) == ([Kind.RUN_ENDED], 0)
    assert (row.status, row.output_file_id, row.completed) == (BatchStatus.COMPLETED, output, 1)
    assert file is not None
    assert (file.bytes, file.expires_at) == (5, EARLIER + timedelta(minutes=30, days=30))


async def test_a_row_whose_files_are_gone_with_its_run_is_told_of_and_left(house: House) -> None:
    await house.live()
    house.run("completed", BatchResult(status=BatchStatus.COMPLETED, total=1, completed=1))
    report = await house.audit()
    assert report.left == 1
    assert not (await house.row()).status.is_terminal


async def test_a_run_that_was_terminated_leaves_a_failed_batch_that_keeps_what_settled(house: House) -> None:
    await house.live()
    house.run("terminated")
    report = await house.audit()
    row = await house.row()
    assert report.left == 0
    assert (row.status, row.errors[0].code) == (BatchStatus.FAILED, "system_error")
    assert row.results_kept_until is not None
    assert row.results_kept_until > NOW


async def test_a_run_without_a_row_makes_it_and_its_end(house: House) -> None:
    output = await house.write("output")
    house.run("completed", BatchResult(status=BatchStatus.EXPIRED, total=1, completed=1))
    report = await house.audit()
    row = await house.row()
    assert kinds(report) == [Kind.ROW_MISSING, Kind.RUN_ENDED]
    assert report.left == 0
    assert (row.status, row.output_file_id) == (BatchStatus.EXPIRED, output)


async def test_what_begins_or_ends_right_now_is_no_difference(house: House) -> None:
    await house.live()
    house.runs.runs[ID] = Run(ID, "acme", EARLIER, "completed", NOW)
    house.runs.runs["batch_new"] = Run("batch_new", "acme", NOW)
    assert (await house.audit()).differences == []


async def test_counts_that_are_not_the_lines_and_files_without_objects_are_told_of(house: House) -> None:
    await house.live()
    house.run("completed")
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
    outcome = Outcome(status=BatchStatus.COMPLETED, completed=1, failed=0, usage=Usage(), output=file)
    await house.database.batches.begin("acme", ID, total=2, models=[], at=EARLIER)
    await house.database.batches.finish("acme", ID, outcome, EARLIER)
    report = await house.audit()
    assert kinds(report) == [Kind.COUNTS, Kind.FILE_MISSING]
    assert report.left == 2
