"""Writes the page about the load that many workers cause on Temporal, PostgreSQL and object storage.

The load is computed from measured constants.
"""

from pathlib import Path
from typing import NamedTuple

from batchwright.activities.execution.slice_state.segment_buffer import FLUSH_RESULTS, FLUSH_SECONDS
from batchwright.settings import Settings
from batchwright.workflows.model_run import MAX_OUTSTANDING
from bench import page
from bench.results import BenchmarkReport, number

_PAGE = Path(__file__).parent / "explanation" / "scaling.md"
_WORKERS = (1, 10, 100, 1_000)
_LINES = 50_000  # lines of the batch whose events, statements and requests are counted
_IN_FLIGHT, _ANSWER_SECONDS = 256, 5.0  # for a worker with a slow backend
_SLICES = 2  # slices that such a worker runs at once
_ACTIVITY_POLLS = 14  # all roles and one model: control 5, io 5, webhooks 2, and 2 queues


class _Resource(NamedTuple):
    """A resource that all workers use together, such as the CPU of Temporal or storage requests.

    `most` is the assumed maximum load of the resource, and `why` is the reason for this number. The unit
    depends on the resource: cores, connections, polls, or requests per second. `remedy` says what to do if
    the load is greater.
    """

    name: str
    most: float
    why: str
    remedy: str


_RESOURCES = {
    "polls": _Resource(
        "activity polls at Temporal",
        1_200,
        "Temporal's default for one namespace and frontend (`frontend.namespaceCount`)",
        "`--roles inference` for most workers, which then have 2 polls instead of 14; more frontends",
    ),
    "temporal": _Resource(
        "Temporal's CPU",
        16,
        "cores of a small cluster; a cluster divides its work among shards, so it grows with its machines",
        "more history and matching machines; a number of shards that is set before the first start",
    ),
    "connections": _Resource(
        "PostgreSQL's connections",
        500,
        "what one server serves well without a pooler",
        "a pooler in session mode; a smaller `BATCHWRIGHT_DATABASE_POOL_SIZE`",
    ),
    "postgresql": _Resource(
        "PostgreSQL's CPU",
        16,
        "cores of one server",
        "`--roles inference` for most workers; a larger server. The tables cannot be divided among servers",
    ),
    "storage": _Resource(
        "storage requests a second",
        3_500,
        "what S3 documents for writes below one prefix; a tenant has a prefix of its own; half are reads",
        "several tenants; S3 divides a prefix that is busy for long",
    ),
}


class _Constants(NamedTuple):
    """Measured constants.

    `events`, `statements` and `storage_requests` are the numbers for one line of a batch. `event_cpu` and
    `statement_cpu` are the seconds of CPU time for one event and for one statement.
    """

    lines_per_second: float  # for a worker whose backend answers at once
    events: float
    statements: float
    storage_requests: float
    event_cpu: float
    statement_cpu: float
    idle_statements: float  # per second and worker


class _Load(NamedTuple):
    name: str
    lines_per_second: float
    storage_requests: float  # for one line


def pages(generated: str) -> dict[Path, str]:
    report = page.read(page.JSON)
    constants = _constants(report)
    return {_PAGE: _text(generated, constants)}


def _constants(report: BenchmarkReport) -> _Constants:
    figures = {figure.key: figure.value for figure in report.figures}
    return _Constants(
        figures["rate.batch"],
        figures["resources.events"] / _LINES,
        figures["resources.statements"] / _LINES,
        figures["resources.storage_requests"] / _LINES,
        figures["small.cpu_ms.temporal"] / figures["small.events"] / 1000,
        figures["small.cpu_ms.postgresql"] / figures["small.statements"] / 1000,
        figures["resources.worker_statements"],
    )


def _uses(workers: int, load: _Load, constants: _Constants) -> dict[str, float]:
    """Return the load that `workers` workers cause on each resource.

    The keys are the names in `_RESOURCES`. The values have the unit of `_Resource.most`.
    """
    lines = workers * load.lines_per_second
    statements = lines * constants.statements + workers * constants.idle_statements
    return {
        "polls": workers * _ACTIVITY_POLLS,
        "temporal": lines * constants.events * constants.event_cpu,
        "connections": workers * Settings.model_fields["database_pool_size"].default,
        "postgresql": statements * constants.statement_cpu,
        "storage": lines * load.storage_requests,
    }


def _table(load: _Load, constants: _Constants) -> str:
    heads = ["workers", "lines/s", *(resource.name for resource in _RESOURCES.values()), "next bottleneck"]
    rows = [heads, ["---:"] * (len(heads) - 1) + ["---"]]
    for workers in _WORKERS:
        uses = _uses(workers, load, constants)
        first = max(uses, key=lambda name: uses[name] / _RESOURCES[name].most)
        share = uses[first] / _RESOURCES[first].most
        rows.append(
            [
                f"{workers:,}",
                number(workers * load.lines_per_second),
                *(number(uses[name]) for name in _RESOURCES),
                f"{_RESOURCES[first].name}: {number(share)} of what it takes",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _load_tables(constants: _Constants) -> str:
    """Return two tables of the load that many workers cause, one for fast and one for slow backends."""
    usual = _IN_FLIGHT / _ANSWER_SECONDS
    # Each slice stores a segment when its time is over, or when it has enough results. Each segment is
    # written, read and deleted once.
    more_segments = max(0.0, _SLICES / FLUSH_SECONDS / usual - 1 / FLUSH_RESULTS)
    loads = (
        _Load(
            "Backends that answer at once",
            constants.lines_per_second,
            constants.storage_requests,
        ),
        _Load(
            f"Backends that take {_ANSWER_SECONDS:g} s, {_IN_FLIGHT} requests in flight for each worker",
            usual,
            constants.storage_requests + 3 * more_segments,
        ),
    )
    return "\n\n".join(f"**{load.name}**\n\n{_table(load, constants)}" for load in loads)


def _text(generated: str, constants: _Constants) -> str:
    limits = "\n".join(
        f"| {resource.name} | {number(resource.most)} | {resource.why} | {resource.remedy} |"
        for resource in _RESOURCES.values()
    )
    return f"""# Many workers

{generated}
After reading this page you know what ten, a hundred and a thousand workers ask of Temporal, PostgreSQL and
the storage, and which of them is the next bottleneck. The tables are computed, not measured: each number is a
measured constant of one worker times the number of workers. So they are right only as long as the servers are
not yet busy.

## What one worker asks

From [Performance](../performance.md), of a batch of {_LINES:,} lines and of batches of one line:

| constant | measured |
|---|---:|
| lines/s of a worker whose backend answers at once | {number(constants.lines_per_second)} |
| history events for 1,000 lines | {number(constants.events * 1000)} |
| SQL statements for 1,000 lines | {number(constants.statements * 1000)} |
| SQL statements a second of an idle worker, all roles | {number(constants.idle_statements)} |
| storage requests for 1,000 lines | {number(constants.storage_requests * 1000)} |
| Temporal's CPU for one history event | {number(constants.event_cpu * 1000)} ms |
| PostgreSQL's CPU for one statement | {number(constants.statement_cpu * 1000)} ms |

Temporal's CPU is that of the embedded server with SQLite, with all that a workflow task takes. CPU times
differ between machines by a factor of three.

## What many workers ask

CPU is in cores. All workers have all roles. A slow backend makes smaller segments, because each of the
{_SLICES} slices of a worker stores one every {FLUSH_SECONDS:g} s.

{_load_tables(constants)}

What each resource is assumed to take, and what to do beyond it:

| resource | takes | because | beyond it |
|---|---:|---|---|
{limits}

## One batch

- *Slices.* A model run schedules at most {MAX_OUTSTANDING} slices at once, so at most as many workers begin
  slices of one model of one batch. Runs before it only wait for the last responses of their slices.
  More workers need several batches, or several models.
- *The history of a model run.* The run schedules a slice for every 256 to 1,024 lines, and hands the rest
  over to another run when its history is long. All its events belong to one shard of Temporal, but
  {number(constants.events * 1000)} events for 1,000 lines are few.
- *Ingestion and finalization* of one batch run in one process each.
  [Reliability](../reliability.md#large-batches) has their time and memory for a line.
"""
