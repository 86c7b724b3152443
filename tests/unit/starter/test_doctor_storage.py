"""`batchwright doctor` warns about a directory whose disk is nearly full."""

from pathlib import Path

import pytest

from batchwright.settings import load
from batchwright.starter.diagnostics import checks
from batchwright.starter.diagnostics.checks import check_storage, now
from batchwright.starter.diagnostics.findings import Level


async def test_a_nearly_full_disk_is_a_warning_although_a_small_object_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_LOW_DISK_BYTES", 10**18)
    chosen = load(storage_dir=tmp_path)
    written, disk = await check_storage(chosen, now)
    assert (written.level, disk.level) == (Level.OK, Level.WARNING)
    assert disk.message.startswith(f"The disk of {tmp_path} has only ")
    monkeypatch.setattr(checks, "_LOW_DISK_BYTES", 0)
    assert [found.level for found in await check_storage(chosen, now)] == [Level.OK]
