"""Limits of memory after which the checks of an input use the disk, so small that a few lines reach them."""

from pathlib import Path

import pytest

from batchwright.activities.stored_results import input_order_index, result_spool
from batchwright.rules import growing_bytes
from batchwright.rules.input import custom_id_uniqueness
from batchwright.storage.spill import spilled_bytes
from batchwright.storage.spill.scratch_file import ScratchFile


def small_memory(environment: pytest.MonkeyPatch) -> list[ScratchFile]:
    """Limit the memory for `custom_id`s to ten lines. Return a list to which the files on disk are added."""
    files = list[ScratchFile]()

    def recorded(directory: Path | None, purpose: str) -> ScratchFile:
        files.append(ScratchFile(directory, purpose))
        return files[-1]

    environment.setattr(spilled_bytes, "ScratchFile", recorded)
    environment.setattr(spilled_bytes, "_MEMORY_BYTES", 0)
    environment.setattr(spilled_bytes, "_CHUNK_BYTES", 1_000)
    environment.setattr(custom_id_uniqueness, "_MAX_IN_TABLE", 10)
    return files


def rows_on_disk(environment: pytest.MonkeyPatch) -> None:
    """Let growing bytes go to disk as soon as they are not empty, and sort and read few rows at a time."""
    environment.setattr(spilled_bytes, "_MEMORY_BYTES", 0)
    environment.setattr(result_spool, "_MEMORY_BYTES", 0)
    environment.setattr(spilled_bytes, "_CHUNK_BYTES", 30)
    environment.setattr(growing_bytes, "_RUN_ROWS", 3)
    environment.setattr(growing_bytes, "_READ_ROWS", 2)
    environment.setattr(growing_bytes, "_UNPACKED_ROWS", 2)
    environment.setattr(input_order_index, "_RECORDS_AT_ONCE", 3)
