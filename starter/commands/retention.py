"""`batchwright retention`: delete what is past its life now, see what would go, or when it last did."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from secrets import token_hex
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel
from rich.table import Table
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.retain.mark import adopt as adopt_storage
from batchwright.contracts.names import CONTROL_QUEUE
from batchwright.contracts.retention import DUE, LITTER, WORKFLOW, Kind, RetentionOrder, RetentionResult
from batchwright.database.errors import DatabaseError
from batchwright.database.pool import Database, open_database
from batchwright.settings import Settings, SettingsError
from batchwright.storage.base import StorageError
from batchwright.storage.observed import Component
from batchwright.storage.opening import open_storage
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal import TemporalUnavailable, connect
from batchwright.temporal.errors import refused
from starter.options import JsonLine, settings_or_stop
from starter.output import Exit, print_json, stderr, stdout, stop

retention = typer.Typer(
    help="Delete what is past its life, or show what would go.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
DryRun = Annotated[bool, typer.Option("--dry-run", help="Delete nothing; count what would go.")]
_Answer = TypeVar("_Answer")


class Success(BaseModel):
    kind: Kind
    succeeded_at: datetime


class Successes(BaseModel):
    kinds: list[Success]


@retention.callback()
def commands() -> None:
    """Delete what is past its life, or show what would go."""


@retention.command("run")
def run(dry_run: DryRun = False, json: JsonLine = False) -> None:
    """Start a run of all kinds and wait for its end.

    The schedules go on beside it. It is done by workers with the role `io`; without one it waits.
    """
    settings = settings_or_stop()
    result = _answered(_run(settings, RetentionOrder(left=[*DUE, *LITTER], dry_run=dry_run)))
    if json:
        print_json(result)
    else:
        stdout().print(_table(result))
    for error in result.errors:
        stderr().print(error, markup=False)
    if any(gone.failures for gone in result.gone):
        raise typer.Exit(Exit.FAILED)


@retention.command("show")
def show(json: JsonLine = False) -> None:
    """Show when each kind was last gone through without a failure."""
    found = _answered(_successes(settings_or_stop()))
    if json:
        return print_json(Successes(kinds=found))
    table = _columns("kind", "last success")
    for one in found:
        table.add_row(one.kind, one.succeeded_at.astimezone().strftime("%Y-%m-%d %H:%M:%S"))
    stdout().print(table)


@retention.command("adopt")
def adopt() -> None:
    """Mark the storage as this database's, whosever it was.

    Rows and objects are compared only where both say that they belong together.
    """
    settings = settings_or_stop()
    _answered(_adopt(settings))
    print("The storage belongs to this database.")


async def _run(settings: Settings, order: RetentionOrder) -> RetentionResult:
    client = await connect(settings)
    id = f"batchwright-retention-{token_hex(4)}"
    try:
        run = await client.start_workflow(
            WORKFLOW, order, id=id, task_queue=CONTROL_QUEUE, result_type=RetentionResult
        )
        stderr().print(f"Started {id}; `batchwright queues` tells whether `control` and `io` are polled.")
        return await run.result()
    except RPCError as error:
        raise refused(settings, error) from error
    except WorkflowFailureError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.details:
            return RetentionResult.model_validate(error.cause.details[0])
        stop(f"{id} ended early: {error.cause}", Exit.FAILED)


async def _successes(settings: Settings) -> list[Success]:
    async def ask(database: Database) -> list[Success]:
        found = await database.retention.successes()
        return [Success(kind=kind, succeeded_at=found[kind]) for kind in Kind if kind in found]

    return await _with_database(settings, ask)


async def _adopt(settings: Settings) -> None:
    async def tell(database: Database) -> None:
        async with open_storage(settings, Metrics(), Component.COLLECTOR) as storage:
            await adopt_storage(database, storage, datetime.now(UTC))

    await _with_database(settings, tell)


async def _with_database(settings: Settings, ask: Callable[[Database], Awaitable[_Answer]]) -> _Answer:
    database = await open_database(settings, patience_seconds=0)
    try:
        return await ask(database)
    finally:
        await database.close()


def _answered(asking: Awaitable[_Answer]) -> _Answer:
    """Ends the command with a sentence where something does not answer."""

    async def asked() -> _Answer:
        return await asking

    try:
        return asyncio.run(asked())
    except SettingsError as error:
        stop(str(error))
    except (DatabaseError, StorageError, TemporalUnavailable) as error:
        stop(str(error), Exit.FAILED)


def _table(result: RetentionResult) -> Table:
    table = _columns("kind", "would go" if result.dry_run else "gone", "bytes", "failures", right=3)
    for gone in result.gone:
        failures = f"{gone.failures:,}" if gone.failures else ""
        table.add_row(gone.kind, f"{gone.count:,}", f"{gone.bytes:,}" if gone.bytes else "", failures)
    return table


def _columns(*names: str, right: int = 0) -> Table:
    """The last `right` of them hold numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, name in enumerate(names):
        table.add_column(name, justify="right" if place >= len(names) - right else "left")
    return table
