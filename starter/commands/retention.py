"""`batchwright retention`: delete what is past its life now, see what would go, or when it last did."""

from datetime import UTC, datetime
from secrets import token_hex
from typing import Annotated

import typer
from pydantic import BaseModel
from rich.table import Table
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.retain.mark import adopt as adopt_storage
from batchwright.contracts.names import CONTROL_QUEUE
from batchwright.contracts.retention import DUE, LITTER, WORKFLOW, Kind, RetentionOrder, RetentionResult
from batchwright.database.pool import Database
from batchwright.settings import Settings
from batchwright.storage.base import StorageError
from batchwright.storage.observed import Component
from batchwright.storage.opening import open_storage
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal import TemporalUnavailable, connect
from batchwright.temporal.errors import refused
from starter.operate.asking import answered, asked, with_database
from starter.options import JsonLine, settings_or_stop
from starter.output import Exit, print_json, stderr, stdout, stop
from starter.tables import columns, local_time

retention = typer.Typer(
    help="Delete what is past its life, or show what would go.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
DryRun = Annotated[bool, typer.Option("--dry-run", help="Delete nothing; count what would go.")]


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
    order = RetentionOrder(left=[*DUE, *LITTER], dry_run=dry_run)
    result = answered(_run(settings, order), TemporalUnavailable)
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
    found = asked(_successes)
    if json:
        return print_json(Successes(kinds=found))
    table = columns("kind", "last success")
    for one in found:
        table.add_row(one.kind, local_time(one.succeeded_at))
    stdout().print(table)


@retention.command("adopt")
def adopt() -> None:
    """Mark the storage as this database's, whosever it was.

    Rows and objects are compared only where both say that they belong together.
    """
    settings = settings_or_stop()
    answered(_adopt(settings), StorageError)
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


async def _successes(database: Database) -> list[Success]:
    found = await database.retention.successes()
    return [Success(kind=kind, succeeded_at=found[kind]) for kind in Kind if kind in found]


async def _adopt(settings: Settings) -> None:
    async def tell(database: Database) -> None:
        async with open_storage(settings, Metrics(), Component.COLLECTOR) as storage:
            await adopt_storage(database, storage, datetime.now(UTC))

    await with_database(settings, tell)


def _table(result: RetentionResult) -> Table:
    table = columns("kind", "would go" if result.dry_run else "gone", "bytes", "failures", right=3)
    for gone in result.gone:
        failures = f"{gone.failures:,}" if gone.failures else ""
        table.add_row(gone.kind, f"{gone.count:,}", f"{gone.bytes:,}" if gone.bytes else "", failures)
    return table
