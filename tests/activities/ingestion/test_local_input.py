"""An input that is a local file is read in place, without a copy."""

import os
from io import FileIO
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.activities.ingestion.input_spool import InputSpool
from batchwright.contracts.errors import Failure
from tests.activities.ingestion.fresh_batch import FreshBatch, a_batch, a_line
from tests.fakes.storage import MemoryStorage


class FileStorage(MemoryStorage):
    """A storage that writes an object to a file in `directory` when the object is opened."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    async def open_file(self, key: str) -> FileIO:
        path = self.directory / "object"
        path.write_bytes(await self.get(key))
        return FileIO(path)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
async def test_an_input_that_is_a_local_file_is_planned_like_any_other(tmp_path: Path, ending: bytes) -> None:
    lines = [a_line(str(number), "ab"[number % 2], system=f"kind {number % 3}") for number in range(9)]
    copied = await a_batch(*lines, ending=ending)
    result = await copied.ingest()
    at_hand = await a_batch(*lines, ending=ending, storage=FileStorage(tmp_path), spool_dir=tmp_path)
    again = await at_hand.ingest()
    assert [share.lines for share in again.models] == [5, 4]
    for share in result.models:
        assert at_hand.shard(again, share) == copied.shard(result, share)
        assert at_hand.plan(again, share) == copied.plan(result, share)


async def test_an_input_that_is_a_local_file_needs_no_space_for_a_copy(tmp_path: Path) -> None:
    batch = FreshBatch(
        a_line("1"), max_batch_file_bytes=2**62, storage=FileStorage(tmp_path), spool_dir=tmp_path
    )
    await batch.upload(size=2**61)
    assert (await batch.ingest()).total == 1


async def test_an_input_that_became_shorter_meanwhile_is_retried(tmp_path: Path) -> None:
    class Shrinking(FileStorage):
        async def open_file(self, key: str) -> FileIO:
            file = await super().open_file(key)
            os.truncate(self.directory / "object", 10)
            return file

    batch = await a_batch(a_line("1"), storage=Shrinking(tmp_path), spool_dir=tmp_path)
    with pytest.raises(ApplicationError, match="cannot read the input's lines again") as raised:
        await batch.ingest()
    assert raised.value.type == Failure.STORAGE_UNAVAILABLE


def test_a_file_of_another_file_system_is_copied(tmp_path: Path) -> None:
    with InputSpool(tmp_path) as spool:
        file = FileIO("/proc/version")
        assert not spool.try_to_use_file(file)
        assert file.closed
        spool.write(b"a\n")
        assert spool.read_line(0, 2) == b"a\n"
