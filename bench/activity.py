"""What measuring one activity in a process of its own needs: settings, an order, memory's peak."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import msgspec

from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.openai import Endpoint
from batchwright.database.rows import FileRow

TENANT, INPUT_ID, BATCH_ID = "bench", "file-input", "batch_" + "0" * 32
CREATED = datetime(2026, 1, 1, tzinfo=UTC)
_MIB = 1024 * 1024
_ROOT = Path(__file__).parents[1]
_Found = TypeVar("_Found")


def in_a_process(module: str, kind: type[_Found], *arguments: object) -> _Found:
    """Runs `module`, whose last line is a `kind` in JSON.

    Raises subprocess.CalledProcessError where it fails.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=_ROOT).stdout
    return msgspec.json.decode(answer.splitlines()[-1], type=kind)


def say(found: msgspec.Struct) -> None:
    """To `in_a_process`."""
    print(msgspec.json.encode(found).decode())


class Memory:
    """The most this process holds, above what it held at the start."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._idle = _status("VmRSS")

    def grown_mib(self) -> float:
        return (_status("VmHWM") - self._idle) / _MIB


def _status(name: str) -> int:
    """Bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def input_row(size: int, key: str = "input") -> FileRow:
    return FileRow(
        id=INPUT_ID,
        tenant=TENANT,
        purpose="batch",
        filename="input.jsonl",
        bytes=size,
        created_at=CREATED,
        storage_key=key,
    )


def order() -> BatchOrder:
    return BatchOrder(
        batch_id=BATCH_ID,
        tenant=TENANT,
        input_file_id=INPUT_ID,
        endpoint=Endpoint.CHAT_COMPLETIONS,
        completion_window="24h",
        created_at=CREATED,
        expires_at=CREATED + timedelta(days=3650),
    )
