"""`batchwright audit`: rows, runs, files and counts compared, and repaired where that is safe."""

from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Annotated

import typer
from temporalio.service import RPCError

from activities.audit.compare import Audit, Sources
from activities.audit.differences import Report
from activities.audit.runs import TemporalRuns
from activities.auditing import noted
from batchwright.database.pool import Database
from batchwright.settings import Settings
from batchwright.storage.base import StorageError
from batchwright.storage.observed import Component
from batchwright.storage.opening import open_storage
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal import TemporalUnavailable, connect
from batchwright.temporal.errors import refused
from starter.operate.asking import answered, with_database
from starter.options import JsonLine, settings_or_stop
from starter.output import Exit, print_json, stderr, stdout
from starter.tables import columns, plain


def audit(
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what can be mended without a loss; tell the rest.")
    ] = False,
    json: JsonLine = False,
) -> None:
    """Compare rows, runs, files and counts.

    Exits with 0 where nothing differs, or all of it was repaired, and with 1 where something is left.
    """
    settings = settings_or_stop()
    errors, looking = stderr(), Looking()
    with errors.status(looking) if errors.is_terminal else nullcontext():
        report = answered(_audit(settings, repair, looking), StorageError, TemporalUnavailable)
    if json:
        print_json(report)
    else:
        _show(report)
    raise typer.Exit(int(Exit.FAILED if report.left else Exit.COMPLETED))


class Looking:
    """What was compared so far, each time it is drawn."""

    def __init__(self) -> None:
        self.audit: Audit | None = None

    def __rich__(self) -> str:
        return "Connecting." if self.audit is None else f"{_compared(self.audit.so_far())} so far."


async def _audit(settings: Settings, repair: bool, looking: Looking) -> Report:
    runs = TemporalRuns(await connect(settings))

    async def compare(database: Database) -> Report:
        async with open_storage(settings, Metrics(), Component.COLLECTOR) as storage:
            sources = Sources(database, storage, runs, settings, now=datetime.now(UTC), repair=repair)
            looking.audit = Audit(sources)
            report = await looking.audit.run()
            await noted(database, report)
            return report

    try:
        return await with_database(settings, compare)
    except RPCError as error:
        raise refused(settings, error) from error


def _show(report: Report) -> None:
    if report.differences:
        table = columns("difference", "tenant", "id", "what", "repair")
        for one in report.differences:
            repair = f"{one.repair} (done)" if one.repaired else one.repair or "none from here"
            table.add_row(one.kind, *map(plain, (one.tenant, one.id, one.what, repair)))
        stdout().print(table)
    stderr().print(
        f"{_compared(report)}; {len(report.differences):,} differences, {report.left:,} left.", markup=False
    )


def _compared(report: Report) -> str:
    return f"{report.rows:,} live batches, {report.runs:,} runs and {report.files:,} files compared"
