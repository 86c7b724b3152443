"""`batchwright storage`: the storage of objects, checked and cleared of what crashes left."""

import json as jsonlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, TypeVar

import typer

from batchwright.storage.base import Storage, StorageError
from batchwright.storage.observed import Component
from batchwright.storage.opening import open_storage
from batchwright.telemetry.metrics import Metrics
from starter.operate.asking import answered
from starter.options import settings_or_stop
from starter.output import Exit

storage = typer.Typer(
    help="Check the storage, or clear it of what crashes left.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
T = TypeVar("T")


@storage.callback()
def commands() -> None:
    """Check the storage, or clear it of what crashes left."""


@storage.command("check")
def check(json: Json = False) -> None:
    """Write, read and delete a small object.

    As every process does when it starts.
    """
    _with_storage(lambda storage: storage.check())
    print(jsonlib.dumps({"storage": "ok"}) if json else "The storage takes objects and gives them back.")


@storage.command("sweep")
def sweep(
    hours: Annotated[
        float, typer.Option(min=1, help="Leave alone what was begun this many hours ago or later.")
    ] = 24.0,
    json: Json = False,
) -> None:
    """Clear away what writers left unfinished.

    Uploads to S3, or files of a directory, that their writers abandoned.
    """
    swept = _with_storage(lambda storage: storage.sweep(timedelta(hours=hours)))
    print(jsonlib.dumps({"swept": swept}) if json else f"{swept} unfinished objects swept.")


def _with_storage(call: Callable[[Storage], Awaitable[T]]) -> T:
    settings = settings_or_stop()

    async def run() -> T:
        async with open_storage(settings, Metrics(), Component.COLLECTOR) as storage:
            return await call(storage)

    return answered(run(), StorageError, code=Exit.FAILED)
