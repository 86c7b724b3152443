"""`batchwright consistency`: compares database, workflow runs and files, and can repair differences.

For each ended batch, the command also checks that the total number of lines is the number of completed lines
plus the number of failed lines.
"""

from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Annotated

import typer
from pydantic import JsonValue
from temporalio.service import RPCError

from batchwright.activities.consistency.activity import store_counts
from batchwright.activities.consistency.check import ComparedSources, ConsistencyCheck
from batchwright.activities.consistency.report import ConsistencyReport
from batchwright.activities.consistency.workflow_runs import TemporalBatchRunSource
from batchwright.contracts.api_objects.audit_log import AuditAction, AuditTargetType
from batchwright.database.database import Database
from batchwright.database.tables.operations.audit_log import AuditTarget
from batchwright.settings import Settings
from batchwright.starter.diagnostics.connections import run_or_stop, with_database
from batchwright.starter.options import JsonLine, settings_or_stop
from batchwright.starter.output import ExitCode, column_table, escaped, print_json, stderr, stdout
from batchwright.starter.recorded_command import recorded_command
from batchwright.storage.base import StorageError
from batchwright.storage.factory import open_storage
from batchwright.storage.observed import StorageComponent
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal import TemporalUnavailable, connect
from batchwright.temporal.errors import from_rpc_error


def consistency(
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what is safe to repair; report the rest.")
    ] = False,
    json: JsonLine = False,
) -> None:
    """Find out where database, Temporal and files differ.

    Exits with 0 if there are no differences or all were repaired. Exits with 1 if differences remain.
    """
    settings = settings_or_stop()
    errors, progress = stderr(), ConsistencyCheckProgress()
    with errors.status(progress) if errors.is_terminal else nullcontext():
        report = run_or_stop(_check(settings, repair, progress), StorageError, TemporalUnavailable)
    if json:
        print_json(report)
    else:
        if report.differences:
            table = column_table("difference", "tenant", "id", "what", "repair")
            for one in report.differences:
                repair_text = f"{one.repair} (done)" if one.repaired else one.repair or "no automatic repair"
                table.add_row(one.kind, *map(escaped, (one.tenant, one.id, one.what, repair_text)))
            stdout().print(table)
        differences = f"{len(report.differences):,} differences, {report.left:,} left"
        stderr().print(f"{_summary(report)}; {differences}.", markup=False)
    raise typer.Exit(int(ExitCode.FAILED if report.left else ExitCode.COMPLETED))


class ConsistencyCheckProgress:
    """A text that shows the progress of a consistency check.

    The library Rich requests the text at each refresh of the screen.
    """

    def __init__(self) -> None:
        self.check: ConsistencyCheck | None = None

    def __rich__(self) -> str:
        return "Connecting." if self.check is None else f"{_summary(self.check.report())} so far."


async def _check(settings: Settings, repair: bool, progress: ConsistencyCheckProgress) -> ConsistencyReport:
    runs = TemporalBatchRunSource(await connect(settings))

    async def compare(database: Database) -> ConsistencyReport:
        async with open_storage(settings, Metrics(), StorageComponent.COLLECTOR) as storage:
            sources = ComparedSources(database, storage, runs, settings, now=datetime.now(UTC), repair=repair)
            progress.check = ConsistencyCheck(sources)
            report = await progress.check.run()
            await store_counts(database, report)
            return report

    async def compare_and_record(database: Database) -> ConsistencyReport:
        """Compare and repair with `compare`, record the repair in the audit log, and return the report."""

        async def read() -> JsonValue:
            return None

        action, target = AuditAction.CONSISTENCY_REPAIR, AuditTarget(type=AuditTargetType.DEPLOYMENT)
        return await recorded_command(database, action, target, read, lambda: compare(database))

    try:
        return await with_database(settings, compare_and_record if repair else compare)
    except RPCError as error:
        raise from_rpc_error(settings, error) from error


def _summary(report: ConsistencyReport) -> str:
    return f"{report.rows:,} live batches, {report.runs:,} runs and {report.files:,} files compared"
