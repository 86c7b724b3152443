"""Ingestion that is retried or cancelled, or has no disk space."""

import asyncio
import contextlib
import gc
import os
import threading
import weakref
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.activities.concurrency import map_concurrently, run_both
from batchwright.activities.ingestion.input_spool import InputSpool
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.terms import BatchStatus
from batchwright.rules import growing_bytes
from batchwright.rules.growing_bytes import sorted_rows
from batchwright.storage.base import StorageFull, StorageUnavailable
from batchwright.storage.spill.spilled_bytes import SpillSpace
from tests.activities.ingestion.fresh_batch import BATCH_ID, TENANT, FreshBatch, a_batch, a_line
from tests.fakes.storage import MemoryStorage, MemoryWriter


async def test_a_second_attempt_writes_its_own_plan() -> None:
    batch = await a_batch(a_line("1"), a_line("2", "x"))
    first = await batch.ingest()
    begun = await batch.row()
    second = await batch.ingest()
    assert second == first.model_copy(update={"ingest_prefix": second.ingest_prefix})
    assert second.ingest_prefix != first.ingest_prefix
    assert batch.shard(second, second.models[0]) == batch.shard(first, first.models[0])
    assert await batch.row() == begun


async def test_a_second_attempt_reports_the_failed_validation_again() -> None:
    batch = await a_batch(b"{")
    assert await batch.ingest() == await batch.ingest() == IngestResult(failed=True, total=1, error_count=1)


async def test_a_batch_begun_under_other_settings_can_still_fail_validation() -> None:
    batch = await a_batch(a_line("1", "x"))
    await batch.ingest()
    batch.settings = {"strict_models": True}
    assert (await batch.ingest()).failed
    row = await batch.row()
    assert (row.status, [error.code for error in row.errors]) == (BatchStatus.FAILED, ["model_not_found"])


async def test_a_batch_that_has_already_ended_is_not_changed() -> None:
    batch = await a_batch(a_line("1"))
    await batch.database.batches.upsert(batch.order)
    at = batch.order.created_at
    await batch.database.batch_ends.end_without_files(TENANT, BATCH_ID, BatchStatus.CANCELLED, [], at)
    assert await batch.ingest() == IngestResult()
    assert batch.written() == []


async def test_the_row_is_created_from_the_order_alone() -> None:
    batch = await a_batch(a_line("1"))
    await batch.ingest()
    assert (await batch.row()).order == batch.order


async def test_ingestion_is_timed() -> None:
    batch = await a_batch(a_line("1"))
    await batch.ingest()
    name = "batchwright_plan_build_duration_seconds_count"
    assert batch.metrics.registry.get_sample_value(name, {"size_bucket": "100"}) == 1


async def test_the_wait_from_the_creation_to_the_first_attempt_is_observed_once() -> None:
    batch = await a_batch(a_line("1"))
    batch.order = batch.order.model_copy(
        update={"created_at": batch.order.created_at - timedelta(seconds=7200)}
    )
    await batch.ingest()
    batch.env.info = replace(batch.env.info, attempt=2)
    await batch.ingest()
    count, name = batch.metrics.registry.get_sample_value, "batchwright_job_queue_wait_duration_seconds"
    assert count(f"{name}_count") == 1
    assert (count(f"{name}_bucket", {"le": "3600.0"}), count(f"{name}_bucket", {"le": "14400.0"})) == (0, 1)


async def test_lines_that_ingestion_settles_are_counted_once_by_code() -> None:
    batch = await a_batch(a_line("1", "nobody's"), a_line("2", "x"), a_line("3"))
    for _ in range(2):  # the result of the first attempt is lost
        await batch.ingest()
    count = batch.metrics.registry.get_sample_value
    labels = {"model": "other", "code": "model_not_found"}
    assert count("batchwright_lines_settled_without_request_total", labels) == 2
    assert count("batchwright_request_errors_by_model_total", {"model": "other"}) == 2
    assert count("batchwright_errors_total", {"error_type": "no_backend", "model": "other"}) == 2


async def test_the_row_has_the_time_at_which_ingestion_began() -> None:
    batch = await a_batch(a_line("1"))
    await batch.ingest()
    assert (await batch.row()).ingestion_began_at is not None


# Errors


async def test_an_unavailable_storage_is_retried() -> None:
    batch = await a_batch(a_line("1"))
    batch.storage.failing = StorageUnavailable("the disk is away")
    with pytest.raises(ApplicationError) as raised:
        await batch.ingest()
    assert (raised.value.type, raised.value.non_retryable) == (Failure.STORAGE_UNAVAILABLE, False)


async def test_a_full_spool_is_retried_and_the_error_names_the_remedy() -> None:
    batch = FreshBatch(a_line("1"), max_batch_file_bytes=2**62)
    await batch.upload(size=2**61)
    with pytest.raises(ApplicationError, match="BATCHWRIGHT_SPOOL_DIR") as raised:
        await batch.ingest()
    assert raised.value.type == Failure.STORAGE_UNAVAILABLE


async def test_a_spool_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    batch = await a_batch(a_line("1"), spool_dir=tmp_path / "file" / "spool")
    with pytest.raises(ApplicationError, match="spool directory") as raised:
        await batch.ingest()
    assert raised.value.type == Failure.STORAGE_UNAVAILABLE


class StuckStorage(MemoryStorage):
    """A storage that never finishes writing an object. It sets the event `stuck` when a write begins."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck = asyncio.Event()

    @contextlib.asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[MemoryWriter, None]:
        self.stuck.set()
        await asyncio.Event().wait()
        yield MemoryWriter()


def open_below(directory: Path) -> list[str]:
    """Return the files in the directory that this process has open, including deleted files."""
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

    def read_on(spool: InputSpool) -> None:
        try:
            while spool.read_line(0, 1):
                reading.set()
        finally:
            stopped.set()

    with InputSpool(tmp_path) as spool:
        work = asyncio.create_task(spool.run_in_thread(read_on, spool))
        await asyncio.to_thread(reading.wait)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert stopped.is_set()


async def test_a_spool_that_is_cancelled_twice_still_waits_for_its_thread(tmp_path: Path) -> None:
    running, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        running.set()
        go_on.wait(30)
        ended.set()

    with InputSpool(tmp_path) as spool:
        task = asyncio.create_task(spool.run_in_thread(work))
        await asyncio.to_thread(running.wait)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()


async def test_a_failed_call_keeps_no_data_of_its_caller(tmp_path: Path) -> None:
    class Data:
        pass

    def fail() -> None:
        raise StorageFull("no space left")

    async def call(spool: InputSpool) -> weakref.ref[Data]:
        data = Data()
        with contextlib.suppress(StorageFull):
            await spool.run_in_thread(fail)
        return weakref.ref(data)

    gc.disable()
    try:
        with InputSpool(tmp_path) as spool:
            kept = await call(spool)
            async with asyncio.timeout(240):
                while kept() is not None:
                    await asyncio.sleep(0)
    finally:
        gc.enable()


async def test_a_cancel_stops_the_sorting_of_a_plan_after_the_current_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing_bytes, "_RUN_ROWS", 10)
    sorting, cancelled, runs = threading.Event(), threading.Event(), list[bytes]()

    def sorted_run(run: bytes) -> list[bytes]:
        runs.append(run)
        sorting.set()
        cancelled.wait(30)
        return [run]

    with InputSpool(tmp_path) as spool:
        rows = spool.new_bytes()
        rows.append(bytes(8 * 100))
        work = asyncio.create_task(spool.run_in_thread(sorted_rows, rows, 8, sorted_run))
        await asyncio.to_thread(sorting.wait, 30)
        work.cancel()
        asyncio.get_running_loop().call_soon(cancelled.set)  # after the task has received the cancel
        with pytest.raises(asyncio.CancelledError):
            await work
    assert len(runs) == 1


def test_a_spool_returns_lines_in_any_order_and_adds_the_last_newline(tmp_path: Path) -> None:
    with InputSpool(tmp_path) as spool:
        spool.write(b"a\nbb\nccc")
        assert spool.read_lines([(5, 4), (0, 2), (2, 3), (0, 2)]) == b"ccc\na\nbb\na\n"
        assert spool.read_lines([(0, 2), (2, 3), (5, 4)]) == b"a\nbb\nccc\n"
        assert spool.read_lines([]) == b""


class Broken(Exception):
    """An error that the code under test does not know."""


class BrokenAt(MemoryStorage):
    """A storage that cannot write the model map, which is the last object that an attempt of ingestion
    writes.
    """

    error: Exception = Broken()

    async def put(self, key: str, data: bytes) -> None:
        if key.endswith("model_map.json"):
            raise self.error
        await super().put(key, data)


@pytest.mark.parametrize("error", [Broken(), StorageUnavailable("the disk is away")])
async def test_a_failed_attempt_deletes_its_objects_and_counts_no_longer(error: Exception) -> None:
    storage = BrokenAt()
    storage.error = error
    batch = await a_batch(a_line("1"), a_line("2", "x"), storage=storage)
    with pytest.raises((Broken, ApplicationError)):
        await batch.ingest()
    assert batch.written() == []
    assert await batch.database.quotas.stored(TENANT) == len(batch.input)


async def test_a_cancelled_attempt_deletes_its_objects() -> None:
    class Stuck(MemoryStorage):
        def __init__(self) -> None:
            super().__init__()
            self.reached = asyncio.Event()

        async def put(self, key: str, data: bytes) -> None:
            if key.endswith("model_map.json"):
                self.reached.set()
                await asyncio.Event().wait()
            await super().put(key, data)

    storage = Stuck()
    batch = await a_batch(a_line("1"), storage=storage)
    ingestion = batch.start()
    await storage.reached.wait()
    assert batch.written()
    ingestion.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ingestion
    assert batch.written() == []


async def test_bytes_written_by_attempts_count_as_stored_bytes_of_the_tenant_until_the_batch_ends() -> None:
    batch = await a_batch(a_line("1"), a_line("2"))
    size = len(batch.input)
    await batch.ingest()
    assert await batch.database.quotas.stored(TENANT) == 2 * size + 2 * 16
    await batch.ingest()
    assert await batch.database.quotas.stored(TENANT) == 3 * size + 4 * 16
    at = batch.order.created_at
    await batch.database.batch_ends.end_without_files(TENANT, BATCH_ID, BatchStatus.CANCELLED, [], at)
    assert await batch.database.quotas.stored(TENANT) == size


async def test_an_error_is_raised_although_it_stops_the_threads_of_other_models(tmp_path: Path) -> None:
    space, is_reading, is_stopped = SpillSpace(tmp_path, "Ingestion"), threading.Event(), threading.Event()

    def read_until_stopped() -> None:
        is_reading.set()
        while not is_stopped.wait(0.001):
            space.check_stopped()

    async def store() -> None:
        await asyncio.to_thread(is_reading.wait)
        raise StorageUnavailable("The storage does not answer.")

    async def publish(model: str) -> None:
        if model == "reads":
            try:
                await space.run_in_thread(read_until_stopped)
            finally:
                is_stopped.set()
        else:
            await run_both(space.run_in_thread(is_stopped.wait), store())

    with pytest.raises(StorageUnavailable):
        await map_concurrently(publish, ["reads", "stores"], at_once=2)
