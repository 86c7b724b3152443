"""Findings of `batchwright doctor` about a storage directory: it is checked and never created."""

import os
from pathlib import Path

import pytest

from batchwright.settings import load
from batchwright.starter.diagnostics import checks
from batchwright.starter.diagnostics.checks import check_storage, now
from batchwright.starter.diagnostics.findings import Level
from batchwright.storage.local import LocalStorage


async def test_a_nearly_full_disk_is_a_warning_although_a_small_object_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_LOW_DISK_BYTES", 10**18)
    LocalStorage(tmp_path)
    chosen = load(storage_dir=tmp_path)
    written, disk = await check_storage(chosen, now)
    assert (written.level, disk.level) == (Level.OK, Level.WARNING)
    assert disk.message.startswith(f"The disk of {tmp_path} has only ")
    monkeypatch.setattr(checks, "_LOW_DISK_BYTES", 0)
    assert [found.level for found in await check_storage(chosen, now)] == [Level.OK]


async def test_a_missing_directory_is_reported_and_not_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "_LOW_DISK_BYTES", 0)
    [finding] = await check_storage(load(storage_dir=Path("state/objects")), now)
    assert finding.level is Level.WARNING
    assert finding.message == (
        f"The storage directory {tmp_path}/state/objects does not exist yet, so it was not checked."
    )
    assert finding.remedy.startswith("The API or a worker creates it at its start.")
    assert os.listdir(tmp_path) == []


async def test_a_directory_whose_disk_may_not_be_mounted_is_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_LOW_DISK_BYTES", 0)
    [finding] = await check_storage(load(storage_dir=tmp_path), now)
    assert finding.level is Level.WARNING
    assert (
        finding.message == f"No process has used the storage directory {tmp_path} yet, so it was not checked."
    )
    assert finding.remedy == "If the API or a worker runs already, check that its disk is mounted."
    assert os.listdir(tmp_path) == []


async def test_a_missing_directory_that_cannot_be_created_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    [finding] = await check_storage(load(storage_dir=file / "objects"), now)
    assert finding.level is Level.PROBLEM
    assert finding.message == (
        f"The storage directory {file}/objects cannot be used: {file} is not a writable directory."
    )
