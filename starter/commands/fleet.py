"""`batchwright models`, `workers`, `queues`: the fleet, as its database and Temporal know it.

The API is not asked: it names no worker and no queue, and these work while it is away.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from pydantic import BaseModel
from temporalio.service import RPCError

from batchwright.contracts.names import inference_queue
from batchwright.database.pool import Database
from batchwright.database.rows import WorkerBeat
from batchwright.inference.catalog import Catalog, Source
from batchwright.rules.ids import safe_name
from batchwright.rules.polled import is_number
from batchwright.settings import Settings
from batchwright.temporal import TemporalUnavailable, connect
from batchwright.temporal.errors import refused
from batchwright.temporal.queues import QueueReport
from starter.operate.asking import answered, with_database
from starter.operate.cluster import reports
from starter.options import JsonLine, settings_or_stop
from starter.output import print_json, stderr, stdout
from starter.tables import columns, plain

_ALIVE = timedelta(seconds=15)  # workers beat every 5 s
_Found = TypeVar("_Found")


class Model(BaseModel):
    """`seen_at` is when a backend listed it last; null where none is asked for it."""

    model: str
    backends: list[str]
    queue: str
    seen_at: datetime | None
    source: Source


class Models(BaseModel):
    models: list[Model]


class Workers(BaseModel):
    workers: list[WorkerBeat]


class Queues(BaseModel):
    queues: list[QueueReport]


def show_models(json: bool) -> None:
    """What `batchwright models` shows by itself."""
    found = _run(settings_or_stop(), _models)
    if json:
        return print_json(Models(models=found))
    if not found:
        stderr().print(
            "No model is registered, and no backend has listed one yet; `batchwright doctor` asks them."
        )
        return
    table = columns("model", "backend", "queue")
    for model in found:
        table.add_row(*map(plain, (model.model, "\n".join(model.backends), model.queue)))
    stdout().print(table)


def workers(json: JsonLine = False) -> None:
    """List the worker processes that are alive.

    Alive is who told of itself in the last 15 seconds.
    """
    found = _run(settings_or_stop(), _workers)
    if json:
        return print_json(Workers(workers=found))
    if not found:
        stderr().print("No worker is alive; `batchwright worker` starts one.")
        return
    names = sorted({name for beat in found for name in beat.stats if is_number(name)})
    table = columns("worker", "seen", *names)
    for beat in found:
        seen = f"{max(0, (datetime.now(UTC) - beat.beat_at).total_seconds()):.0f} s ago"
        table.add_row(beat.id, seen, *(f"{beat.stats.get(name, 0):g}" for name in names))
    stdout().print(table)


def show_queues(json: bool) -> None:
    """What `batchwright queues` shows without models."""
    found = _run(settings_or_stop(), _queues)
    if json:
        return print_json(Queues(queues=found))
    table = columns("queue", "waiting", "oldest", "pollers", "limit/s", right=4)
    for queue in found:
        oldest = f"{queue.oldest_seconds:.0f} s" if queue.backlog else ""
        limit = "" if queue.limit is None else f"{queue.limit:g}"
        table.add_row(queue.name, str(queue.backlog), oldest, str(queue.pollers), limit)
    stdout().print(table)


async def _models(settings: Settings, database: Database) -> list[Model]:
    return [
        Model(
            model=entry.model,
            backends=[backend.url for backend in entry.config.backends],
            queue=inference_queue(safe_name(entry.model)),
            seen_at=entry.seen_at,
            source=entry.source,
        )
        for entry in await Catalog(settings).read(database)
    ]


async def _workers(_: Settings, database: Database) -> list[WorkerBeat]:
    return await database.workers.beats(datetime.now(UTC) - _ALIVE)


async def _queues(settings: Settings, database: Database) -> list[QueueReport]:
    names = [model.model for model in await _models(settings, database)]
    try:
        return await reports(await connect(settings), names)
    except RPCError as error:
        raise refused(settings, error) from error


def _run(settings: Settings, ask: Callable[[Settings, Database], Awaitable[_Found]]) -> _Found:
    return answered(with_database(settings, partial(ask, settings)), TemporalUnavailable)
