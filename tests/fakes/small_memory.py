"""Small limits of memory for tests.

Checks of an input and the finalization of a batch use the disk beyond these limits. A few lines are enough to
reach them.
"""

from pathlib import Path

import pytest

from batchwright.activities.stored_results import input_order_index, result_spool
from batchwright.rules import growing_bytes
from batchwright.rules.input import custom_id_uniqueness
from batchwright.storage.spill import spilled_bytes
from batchwright.storage.spill.scratch_file import ScratchFile


def small_memory(environment: pytest.MonkeyPatch) -> list[ScratchFile]:
    """Limit the memory for `custom_id`s to ten lines. Return a list that gets each file which is created on
    disk.
    """
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
    """Let finalization store its records on disk from the first one, and sort and read only a
    few at a time.
    """
    environment.setattr(spilled_bytes, "_MEMORY_BYTES", 0)
    environment.setattr(result_spool, "_MEMORY_BYTES", 0)
    environment.setattr(spilled_bytes, "_CHUNK_BYTES", 30)
    environment.setattr(growing_bytes, "_RUN_ROWS", 3)
    environment.setattr(growing_bytes, "_READ_ROWS", 2)
    environment.setattr(growing_bytes, "_UNPACKED_ROWS", 2)
    environment.setattr(input_order_index, "_RECORDS_AT_ONCE", 3)
