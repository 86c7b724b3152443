"""`batchwright retention`: deletes expired data now, or counts the data that would be deleted.

It also shows when each kind of data was last deleted successfully.
"""

from datetime import UTC, datetime
from secrets import token_hex
from typing import Annotated

import typer
from pydantic import BaseModel, JsonValue
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from batchwright.activities.retention.storage_mark import adopt_storage
from batchwright.contracts.api_objects.audit_log import AuditAction, AuditTargetType
from batchwright.contracts.temporal_names import CONTROL_QUEUE
from batchwright.contracts.temporal_payloads.retention import (
    EXPIRED_KINDS,
    LITTER_KINDS,
    WORKFLOW,
    RetentionKind,
    RetentionOrder,
    RetentionResult,
)
from batchwright.database.database import Database
from batchwright.database.tables.operations.audit_log import AuditTarget
from batchwright.settings import Settings
from batchwright.starter.diagnostics.connections import query_or_stop, run_or_stop, with_database
from batchwright.starter.options import JsonLine, command_group, settings_or_stop
from batchwright.starter.output import ExitCode, column_table, local_time, print_json, stderr, stdout, stop
from batchwright.starter.recorded_command import recorded_command
from batchwright.storage.base import StorageError
from batchwright.storage.factory import open_storage
from batchwright.storage.observed import StorageComponent
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal import TemporalUnavailable, connect
from batchwright.temporal.errors import from_rpc_error

retention = command_group("Delete expired data, or show what would be deleted.")
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")]


class LastSuccess(BaseModel):
    kind: RetentionKind
    succeeded_at: datetime


class LastSuccesses(BaseModel):
    kinds: list[LastSuccess]


@retention.callback()
def commands() -> None:
    """Delete expired data, or show what would be deleted."""


@retention.command("run")
def run(dry_run: DryRun = False, json: JsonLine = False) -> None:
    """Run retention for all kinds of data now, and wait until it has ended.

    Retention runs in workers with the role `io`. The regular runs of retention still take place.
    """
    settings = settings_or_stop()
    order = RetentionOrder(kinds=[*EXPIRED_KINDS, *LITTER_KINDS], dry_run=dry_run)
    result = run_or_stop(_run(settings, order), TemporalUnavailable)
    if json:
        print_json(result)
    else:
        done = "to delete" if result.dry_run else "deleted"
        table = column_table("kind", done, "bytes", "failures", right=3)
        for deleted in result.deleted:
            size = f"{deleted.bytes:,}" if deleted.bytes else ""
            failures = f"{deleted.failures:,}" if deleted.failures else ""
            table.add_row(deleted.kind, f"{deleted.count:,}", size, failures)
        stdout().print(table)
    for error in result.errors:
        stderr().print(error, markup=False)
    if any(deleted.failures for deleted in result.deleted):
        raise typer.Exit(ExitCode.FAILED)


@retention.command("show")
def show(json: JsonLine = False) -> None:
    """Show when retention last succeeded for each kind of data."""
    times = query_or_stop(lambda database: database.retention.successes())
    kinds = [LastSuccess(kind=kind, succeeded_at=times[kind]) for kind in RetentionKind if kind in times]
    if json:
        return print_json(LastSuccesses(kinds=kinds))
    table = column_table("kind", "last success")
    for one in kinds:
        table.add_row(one.kind, local_time(one.succeeded_at))
    stdout().print(table)


@retention.command("adopt")
def adopt() -> None:
    """Mark the object storage as belonging to this database.

    The mark is an object in the storage that contains the id of the database. If this mark is lost or
    contains the id of another database, retention does not compare database and storage.
    """
    settings = settings_or_stop()

    async def mark_storage(database: Database) -> None:
        async with open_storage(settings, Metrics(), StorageComponent.COLLECTOR) as storage:
            await adopt_storage(database, storage, datetime.now(UTC))

    async def record(database: Database) -> None:
        async def read() -> JsonValue:
            mark = await database.retention.mark()
            return {"database": mark.id, "marked": mark.marked_at is not None}

        action, target = AuditAction.STORAGE_ADOPT, AuditTarget(type=AuditTargetType.DEPLOYMENT)
        await recorded_command(database, action, target, read, lambda: mark_storage(database))

    run_or_stop(with_database(settings, record), StorageError)
    print("The storage belongs to this database.")


async def _run(settings: Settings, order: RetentionOrder) -> RetentionResult:
    client = await connect(settings)
    id = f"batchwright-retention-{token_hex(4)}"
    try:
        run = await client.start_workflow(
            WORKFLOW, order, id=id, task_queue=CONTROL_QUEUE, result_type=RetentionResult
        )
        stderr().print(f"Started {id}; `batchwright queues` shows whether `control` and `io` are polled.")
        return await run.result()
    except RPCError as error:
        raise from_rpc_error(settings, error) from error
    except WorkflowFailureError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.details:
            return RetentionResult.model_validate(error.cause.details[0])
        stop(f"{id} ended early: {error.cause}", ExitCode.FAILED)
