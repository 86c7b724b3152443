"""Ingestion tried again, cancelled, or without the disk it needs."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator
from io import FileIO
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError

from activities.ingest.spool import Spool
from batchwright.contracts.errors import Failure
from batchwright.contracts.ingestion import IngestResult
from batchwright.contracts.openai import BatchStatus
from batchwright.storage.base import StorageUnavailable
from tests.activities.fresh_batch import BATCH_ID, TENANT, FreshBatch, a_batch, a_line
from tests.fakes.storage import MemoryStorage, MemoryWriter


async def test_a_second_attempt_writes_a_plan_of_its_own() -> None:
    batch = await a_batch(a_line("1"), a_line("2", "x"))
    first = await batch.ingest()
    begun = await batch.row()
    second = await batch.ingest()
    assert second == first.model_copy(update={"prefix": second.prefix})
    assert second.prefix != first.prefix
    assert batch.shard(second, second.models[0]) == batch.shard(first, first.models[0])
    assert await batch.row() == begun


async def test_a_second_attempt_reports_the_failed_validation_again() -> None:
    batch = await a_batch(b"{")
    assert await batch.ingest() == await batch.ingest() == IngestResult(failed=True, total=1, errors=1)


async def test_a_batch_begun_under_other_settings_does_not_stay_in_progress() -> None:
    batch = await a_batch(a_line("1", "x"))
    await batch.ingest()
    batch.settings = {"strict_models": True}
    assert (await batch.ingest()).failed
    row = await batch.row()
    assert (row.status, [error.code for error in row.errors]) == (BatchStatus.FAILED, ["model_not_found"])


async def test_a_batch_that_ended_meanwhile_is_left_alone() -> None:
    batch = await a_batch(a_line("1"))
    await batch.database.batches.upsert(batch.order)
    at = batch.order.created_at
    await batch.database.batches.end(TENANT, BATCH_ID, BatchStatus.CANCELLED, [], at)
    assert await batch.ingest() == IngestResult()
    assert batch.written() == []


async def test_the_row_is_made_from_the_order_alone() -> None:
    batch = await a_batch(a_line("1"))
    await batch.ingest()
    assert (await batch.row()).order == batch.order


async def test_ingestion_is_timed() -> None:
    batch = await a_batch(a_line("1"))
    await batch.ingest()
    name = "batchwright_plan_build_duration_seconds_count"
    assert batch.metrics.registry.get_sample_value(name, {"size_bucket": "100"}) == 1


# Trouble


async def test_an_unavailable_storage_is_retried() -> None:
    batch = await a_batch(a_line("1"))
    batch.storage.failing = StorageUnavailable("the disk is away")
    with pytest.raises(ApplicationError) as raised:
        await batch.ingest()
    assert (raised.value.type, raised.value.non_retryable) == (Failure.STORAGE_UNAVAILABLE, False)


async def test_a_full_spool_is_retried_and_says_what_to_do() -> None:
    batch = FreshBatch(a_line("1"), max_batch_file_bytes=2**62)
    await batch.upload(size=2**61)
    with pytest.raises(ApplicationError, match="BATCHWRIGHT_SPOOL_DIR") as raised:
        await batch.ingest()
    assert raised.value.type == Failure.STORAGE_UNAVAILABLE


async def test_a_spool_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    batch = await a_batch(a_line("1"), spool_dir=tmp_path / "file" / "spool")
    with pytest.raises(ApplicationError, match="spool directory") as raised:
        await batch.ingest()
    assert raised.value.type == Failure.STORAGE_UNAVAILABLE


class StuckStorage(MemoryStorage):
    """Tells when an object is being written, which then never ends."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck = asyncio.Event()

    @contextlib.asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[MemoryWriter, None]:
        self.stuck.set()
        await asyncio.Event().wait()
        yield MemoryWriter()


def open_below(directory: Path) -> list[str]:
    """The process's open files there, deleted ones too."""
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if link.is_symlink()]
    return [target for target in targets if target.startswith(f"{directory}/")]


async def test_a_cancelled_ingestion_leaves_no_spool(tmp_path: Path) -> None:
    storage = StuckStorage()
    batch = await a_batch(a_line("1"), storage=storage, spool_dir=tmp_path)
    running = batch.start()
    await storage.stuck.wait()
    assert len(open_below(tmp_path)) == 1
    batch.env.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert open_below(tmp_path) == os.listdir(tmp_path) == []


async def test_a_cancelled_spool_stops_its_thread(tmp_path: Path) -> None:
    reading, stopped = threading.Event(), threading.Event()

    def read_on(spool: Spool) -> None:
        try:
            while spool.read_line(0, 1):
                reading.set()
        finally:
            stopped.set()

    with Spool(tmp_path) as spool:
        work = asyncio.create_task(spool.off_loop(read_on, spool))
        await asyncio.to_thread(reading.wait)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert stopped.is_set()


def test_a_spool_gives_lines_in_any_order_and_the_last_one_a_newline(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.write(b"a\nbb\nccc")
        assert spool.read_lines([(5, 4), (0, 2), (2, 3), (0, 2)]) == b"ccc\na\nbb\na\n"
        assert spool.read_lines([(0, 2), (2, 3), (5, 4)]) == b"a\nbb\nccc\n"
        assert spool.read_lines([]) == b""


# An input that is a file at hand


class FileStorage(MemoryStorage):
    """Its objects are files of `directory` too, once they are opened."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    async def opened(self, key: str) -> FileIO:
        path = self.directory / "object"
        path.write_bytes(await self.get(key))
        return FileIO(path)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
async def test_an_input_that_is_a_file_is_planned_as_any_other(tmp_path: Path, ending: bytes) -> None:
    lines = [a_line(str(number), "ab"[number % 2], system=f"kind {number % 3}") for number in range(9)]
    copied = await a_batch(*lines, ending=ending)
    result = await copied.ingest()
    at_hand = await a_batch(*lines, ending=ending, storage=FileStorage(tmp_path), spool_dir=tmp_path)
    again = await at_hand.ingest()
    assert [share.lines for share in again.models] == [5, 4]
    for share in result.models:
        assert at_hand.shard(again, share) == copied.shard(result, share)
        assert at_hand.plan(again, share) == copied.plan(result, share)


async def test_an_input_that_is_a_file_needs_no_room_for_a_copy(tmp_path: Path) -> None:
    batch = FreshBatch(
        a_line("1"), max_batch_file_bytes=2**62, storage=FileStorage(tmp_path), spool_dir=tmp_path
    )
    await batch.upload(size=2**61)
    assert (await batch.ingest()).total == 1


async def test_an_input_that_became_shorter_meanwhile_is_retried(tmp_path: Path) -> None:
    class Shrinking(FileStorage):
        async def opened(self, key: str) -> FileIO:
            file = await super().opened(key)
            os.truncate(self.directory / "object", 10)
            return file

    batch = await a_batch(a_line("1"), storage=Shrinking(tmp_path), spool_dir=tmp_path)
    with pytest.raises(ApplicationError, match="cannot read the input's lines again") as raised:
        await batch.ingest()
    assert raised.value.type == Failure.STORAGE_UNAVAILABLE


def test_a_file_of_another_file_system_is_copied(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        file = FileIO("/proc/version")
        assert not spool.takes(file)
        assert file.closed
        spool.write(b"a\n")
        assert spool.read_line(0, 2) == b"a\n"
