"""Shows the backlog of Temporal's task queues, for `batchwright queues` without a model.

The queues are read from the database and Temporal, without the API.
"""

from functools import partial

from pydantic import BaseModel
from temporalio.service import RPCError

from batchwright.database.database import Database
from batchwright.inference.registry.model_catalog import Catalog
from batchwright.settings import Settings
from batchwright.starter.diagnostics.connections import run_or_stop, with_database
from batchwright.starter.diagnostics.temporal_checks import queue_reports
from batchwright.starter.options import settings_or_stop
from batchwright.starter.output import column_table, print_json, stdout
from batchwright.temporal import TemporalUnavailable, connect
from batchwright.temporal.errors import from_rpc_error
from batchwright.temporal.task_queues import QueueReport


class QueuesOutput(BaseModel):
    queues: list[QueueReport]


def show_queues(json: bool) -> None:
    """Print a table or JSON of Temporal's task queues, with the number of waiting tasks of each queue.

    This is the command `batchwright queues` without arguments.
    """
    settings = settings_or_stop()
    found = run_or_stop(with_database(settings, partial(_queues, settings)), TemporalUnavailable)
    if json:
        return print_json(QueuesOutput(queues=found))
    table = column_table("queue", "waiting", "oldest", "pollers", "limit/s", right=4)
    for queue in found:
        oldest = f"{queue.oldest_seconds:.0f} s" if queue.backlog else ""
        limit = "" if queue.limit is None else f"{queue.limit:g}"
        table.add_row(queue.name, str(queue.backlog), oldest, str(queue.pollers), limit)
    stdout().print(table)


async def _queues(settings: Settings, database: Database) -> list[QueueReport]:
    names = [entry.model for entry in await Catalog(settings).read(database)]
    try:
        return await queue_reports(await connect(settings), names)
    except RPCError as error:
        raise from_rpc_error(settings, error) from error
