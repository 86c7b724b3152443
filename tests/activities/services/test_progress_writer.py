"""Counts that could not be written are written later, because a finished slice reports only once."""

import asyncio

import pytest

from batchwright.activities.services.progress_writer import ProgressReporter
from batchwright.database.records import SliceProgress
from tests.activities.execution.fixture import ProgressLog


class Table(ProgressLog):
    """A progress table of a database that does not answer until `answers` is set, or raises `error`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answers = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None

    async def record(self, rows: list[SliceProgress]) -> None:
        self.asked.set()
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        await super().record(rows)


def progress(number: int, *, completed: int = 1) -> SliceProgress:
    return SliceProgress(
        tenant="acme",
        batch_id="batch_1",
        model="alpha",
        number=number,
        generation=0,
        attempt=1,
        completed=completed,
        failed=0,
    )


async def test_counts_of_a_write_that_was_cancelled_are_written_with_the_next() -> None:
    table = Table()
    reporter = ProgressReporter(table)
    reporter.report(progress(0))
    writing = asyncio.create_task(reporter.send())
    await table.asked.wait()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    table.answers.set()
    await reporter.send()
    assert table.upserts == [[progress(0)]]


async def test_counts_of_a_write_that_failed_in_an_unknown_way_are_written_with_the_next() -> None:
    table = Table()
    table.answers.set()
    table.error = RuntimeError("unknown")
    reporter = ProgressReporter(table)
    reporter.report(progress(0))
    with pytest.raises(RuntimeError, match="unknown"):
        await reporter.send()
    table.error = None
    await reporter.send()
    assert table.upserts == [[progress(0)]]


async def test_newer_counts_of_a_slice_replace_those_that_could_not_be_written() -> None:
    table = Table()
    reporter = ProgressReporter(table)
    reporter.report(progress(0))
    reporter.report(progress(1))
    writing = asyncio.create_task(reporter.send())
    await table.asked.wait()
    reporter.report(progress(0, completed=2))
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    table.answers.set()
    await reporter.send()
    assert table.upserts == [[progress(0, completed=2), progress(1)]]
