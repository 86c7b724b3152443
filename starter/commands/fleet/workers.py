"""`batchwright workers`: lists the running worker processes. It reads the database, without the API."""

from datetime import UTC, datetime, timedelta

from pydantic import BaseModel

from batchwright.database.records import WorkerHeartbeat
from batchwright.rules.worker_stats import is_worker_number
from batchwright.starter.diagnostics.connections import query_or_stop
from batchwright.starter.options import JsonLine
from batchwright.starter.output import column_table, print_json, stderr, stdout

_ALIVE = timedelta(seconds=15)  # workers send a heartbeat every 5 s


class WorkersOutput(BaseModel):
    workers: list[WorkerHeartbeat]


def workers(json: JsonLine = False) -> None:
    """List the running worker processes.

    A worker counts as running if it sent a heartbeat in the last 15 seconds.
    """
    found = query_or_stop(lambda database: database.workers.heartbeats(_ALIVE))
    if json:
        return print_json(WorkersOutput(workers=found))
    if not found:
        stderr().print("No worker is running; `batchwright worker` starts one.")
        return
    names = sorted({name for beat in found for name in beat.stats if is_worker_number(name)})
    table = column_table("worker", "seen", *names)
    for beat in found:
        seen = f"{max(0, (datetime.now(UTC) - beat.beat_at).total_seconds()):.0f} s ago"
        table.add_row(beat.id, seen, *(f"{beat.stats.get(name, 0):g}" for name in names))
    stdout().print(table)
