"""Helpers to measure one Temporal activity in a separate process."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import msgspec

from batchwright.activities import memory
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.terms import Endpoint
from batchwright.database.records import FileRow

TENANT, INPUT_ID, BATCH_ID = "bench", "file-input", "batch_" + "0" * 32
CREATED = datetime(2026, 1, 1, tzinfo=UTC)
_MIB = 1024 * 1024
_ROOT = Path(__file__).parents[2]
_Found = TypeVar("_Found")


def in_a_process(module: str, kind: type[_Found], *arguments: object) -> _Found:
    """Run `python -m module` with `arguments`, and return its result.

    The last line that the process prints is the result: an object of the class `kind`, as JSON.

    Raises:
        subprocess.CalledProcessError: the process failed.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=_ROOT).stdout
    return msgspec.json.decode(answer.splitlines()[-1], type=kind)


def print_result(found: msgspec.Struct) -> None:
    """Print `found` as one line of JSON. `in_a_process` reads it in the parent process."""
    print(msgspec.json.encode(found).decode())


class MemoryGrowth:
    """A measurement of the additional memory of this process.

    The additional memory is the peak memory since the creation of this object, minus the memory at the
    creation. The object also makes this process return freed memory to the system, as a worker does.
    """

    def __init__(self) -> None:
        memory.return_large_blocks(memory.glibc_malloc())
        Path("/proc/self/clear_refs").write_text("5")
        self._idle = _status("VmRSS")

    def grown_mib(self) -> float:
        return (_status("VmHWM") - self._idle) / _MIB


def _status(name: str) -> int:
    """Return a memory field of /proc/self/status in bytes. `name` is the field, such as VmRSS."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def input_row(size: int) -> FileRow:
    return FileRow(
        id=INPUT_ID,
        tenant=TENANT,
        purpose="batch",
        filename="input.jsonl",
        bytes=size,
        created_at=CREATED,
        storage_key="input",
    )


def order() -> BatchOrder:
    return BatchOrder(
        batch_id=BATCH_ID,
        tenant=TENANT,
        input_file_id=INPUT_ID,
        endpoint=Endpoint.CHAT_COMPLETIONS,
        completion_window="24h",
        created_at=CREATED,
        deadline=CREATED + timedelta(days=3650),
    )
