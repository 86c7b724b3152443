"""`batchwright storage`: checks object storage, and deletes unfinished objects of crashed processes."""

import json as jsonlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, TypeVar

import typer

from batchwright.starter.diagnostics.connections import run_or_stop
from batchwright.starter.options import command_group, settings_or_stop
from batchwright.starter.output import ExitCode
from batchwright.storage.base import Storage, StorageError
from batchwright.storage.factory import open_storage
from batchwright.storage.observed import StorageComponent
from batchwright.telemetry.metrics import Metrics

storage = command_group("Check object storage, or sweep unfinished objects.")
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
T = TypeVar("T")


@storage.callback()
def commands() -> None:
    """Check object storage, or sweep unfinished objects."""


@storage.command("check")
def check(json: Json = False) -> None:
    """Write, read and delete a small object.

    Each process of Batchwright does the same when it starts.
    """
    _with_storage(lambda storage: storage.check())
    print(jsonlib.dumps({"storage": "ok"}) if json else "Objects can be written, read and deleted.")


@storage.command("sweep")
def sweep(
    hours: Annotated[float, typer.Option(min=1, help="Keep objects begun within this many hours.")] = 24.0,
    json: Json = False,
) -> None:
    """Delete unfinished objects of crashed processes.

    Unfinished objects are uploads in S3, or temporary files in a directory.
    """
    swept = _with_storage(lambda storage: storage.sweep(timedelta(hours=hours)))
    print(jsonlib.dumps({"swept": swept}) if json else f"Deleted {swept} unfinished objects.")


def _with_storage(call: Callable[[Storage], Awaitable[T]]) -> T:
    settings = settings_or_stop()

    async def run() -> T:
        async with open_storage(settings, Metrics(), StorageComponent.COLLECTOR) as storage:
            return await call(storage)

    return run_or_stop(run(), StorageError, code=ExitCode.FAILED)
