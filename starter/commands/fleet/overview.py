"""`batchwright models`, `workers`, `queues`: show the models, the worker processes and the task queues.

The commands do not need the API, because they read the database and Temporal directly.
"""

from datetime import UTC, datetime, timedelta
from functools import partial

from pydantic import BaseModel
from temporalio.service import RPCError

from batchwright.contracts.model_registry.registry_config import ModelSource
from batchwright.contracts.temporal_names import inference_queue
from batchwright.database.database import Database
from batchwright.database.records import WorkerHeartbeat
from batchwright.inference.registry.model_catalog import Catalog
from batchwright.rules.ids import safe_name
from batchwright.rules.worker_stats import is_worker_number
from batchwright.settings import Settings
from batchwright.starter.diagnostics.connections import query_or_stop, run_or_stop, with_database
from batchwright.starter.diagnostics.temporal_checks import queue_reports
from batchwright.starter.options import JsonLine, settings_or_stop
from batchwright.starter.output import column_table, escaped, print_json, stderr, stdout
from batchwright.temporal import TemporalUnavailable, connect
from batchwright.temporal.errors import from_rpc_error
from batchwright.temporal.task_queues import QueueReport

_ALIVE = timedelta(seconds=15)  # workers send a heartbeat every 5 s


class ModelOutput(BaseModel):
    """A model with its backends and its task queue.

    `seen_at` is the time at which a backend last listed the model. It is null if the model comes from the
    registry file or from a change at run time, and not from a backend's list of models.
    """

    model: str
    backends: list[str]
    queue: str
    seen_at: datetime | None
    source: ModelSource


class ModelsOutput(BaseModel):
    models: list[ModelOutput]


class WorkersOutput(BaseModel):
    workers: list[WorkerHeartbeat]


class QueuesOutput(BaseModel):
    queues: list[QueueReport]


def show_models(json: bool) -> None:
    """Print all models with their backends and task queues. This is the command `batchwright models`."""
    settings = settings_or_stop()
    found = run_or_stop(with_database(settings, partial(_models, settings)))
    if json:
        return print_json(ModelsOutput(models=found))
    if not found:
        stderr().print(
            "No model is registered, and no backend has listed one yet; `batchwright doctor` checks them."
        )
        return
    table = column_table("model", "backend", "queue")
    for model in found:
        table.add_row(*map(escaped, (model.model, "\n".join(model.backends), model.queue)))
    stdout().print(table)


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


async def _models(settings: Settings, database: Database) -> list[ModelOutput]:
    return [
        ModelOutput(
            model=entry.model,
            backends=[backend.url for backend in entry.config.backends],
            queue=inference_queue(safe_name(entry.model)),
            seen_at=entry.seen_at,
            source=entry.source,
        )
        for entry in await Catalog(settings).read(database)
    ]


async def _queues(settings: Settings, database: Database) -> list[QueueReport]:
    names = [model.model for model in await _models(settings, database)]
    try:
        return await queue_reports(await connect(settings), names)
    except RPCError as error:
        raise from_rpc_error(settings, error) from error
