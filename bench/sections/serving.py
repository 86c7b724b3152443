"""Section of the benchmark: latency of the API during a batch at full rate, and of listing many batches."""

import asyncio
import time
from pathlib import Path

import httpx

from batchwright.database.pool import open_connection_pool
from batchwright.starter.client import Client
from bench import batches, metrics_scraping
from bench.inputs import write_input
from bench.results import Figure, Target, percentile
from bench.section import Section, SectionOptions
from bench.stack import RunningStack, running_stack, simulator, wait_until_quiet

_IN_FLIGHT, _LISTED = 64, 20
_SECONDS, _PAUSE_SECONDS = 60.0, 0.005
_COLUMNS = """
SELECT string_agg(quote_ident(column_name), ', ') AS names FROM information_schema.columns
WHERE table_name = 'batches' AND table_schema = current_schema()
    AND is_generated = 'NEVER' AND column_name NOT IN ('id', 'created_at')"""


def measure(options: SectionOptions) -> list[Figure]:
    count, others = options.size(20_000, 2_000), options.size(100_000, 1_000)
    path = options.folder / "serving.jsonl"
    write_input(path, count)
    gets: list[float] = []
    lists: list[list[float]] = []
    with (
        simulator() as backend,
        running_stack(options.folder / "serving", backend.url, in_flight=_IN_FLIGHT) as stack,
    ):
        for number in options.turns(_SECONDS):
            wait_until_quiet(stack)
            gets.append(_while_running(stack, path))
            options.report(f"round {number}: GET p99 {gets[-1]:.1f} ms")
        wait_until_quiet(stack)
        operators = metrics_scraping.measure(stack, options)
        asyncio.run(_fill(stack, others))
        for _ in range(options.rounds):
            lists.append(_listing(stack, options.size(200, 20)))
    medians = [percentile(taken, 0.5) for taken in lists]
    slowest = [percentile(taken, 0.99) for taken in lists]
    options.report(f"list of {_LISTED} among {others:,}: {medians[-1]:.1f} ms")
    what = f"list of {_LISTED} among {others:,} batches, median"
    return [
        Figure("serving.get_ms", "GET of a batch, p99 while it runs at full rate", gets, "ms", Target(25.0)),
        Figure("serving.list_ms", what, medians, "ms", Target(20.0)),
        Figure("serving.list_p99_ms", "the same, p99", slowest, "ms"),
        *operators,
    ]


def _while_running(stack: RunningStack, path: Path) -> float:
    """Run a batch, and request its state from the API again and again until it has ended.

    Return the 99th percentile of the durations of these requests in milliseconds.
    """
    with Client(stack.api) as client, httpx.Client(base_url=stack.api, trust_env=False) as plain:
        batch = batches.create(client, batches.upload(client, path))
        taken: list[float] = []
        status = ""
        while status not in ("completed", "failed", "expired", "cancelled"):
            answer, seconds = _timed(plain, f"/v1/batches/{batch.id}")
            taken.append(seconds)
            status = answer.json()["status"]
            time.sleep(_PAUSE_SECONDS)
    if status != "completed":
        raise SystemExit(f"{batch.id} ended as {status}")
    return percentile(taken, 0.99) * 1000


def _listing(stack: RunningStack, calls: int) -> list[float]:
    """List the newest batches `calls` times. Return the duration of each call in milliseconds."""
    with httpx.Client(base_url=stack.api, trust_env=False) as plain:
        return [_timed(plain, f"/v1/batches?limit={_LISTED}")[1] * 1000 for _ in range(calls)]


def _timed(plain: httpx.Client, path: str) -> tuple[httpx.Response, float]:
    started = time.perf_counter()
    answer = plain.get(path).raise_for_status()
    return answer, time.perf_counter() - started


async def _fill(stack: RunningStack, count: int) -> None:
    """Insert `count` copies of a completed batch into the database.

    The creation times of the copies are in the past, one second apart.
    """
    connection = await open_connection_pool(stack.postgres, size=2, patience_seconds=10)
    row = await connection.fetchrow(_COLUMNS)
    assert row is not None
    columns = str(row["names"])
    await connection.execute(
        f"INSERT INTO batches (id, created_at, {columns}) "
        f"SELECT 'batch_' || md5(n::text), created_at - n * interval '1 second', {columns} "
        "FROM (SELECT * FROM batches WHERE status = 'completed' LIMIT 1) b, "
        "generate_series(1, $1::integer) n",
        count,
    )
    await connection.execute("ANALYZE batches")
    await connection.close()


SECTION = Section(
    "serving",
    "The API under load",
    "GETs of a batch of 20,000 lines, one after the other while it runs before a simulator that answers at "
    "once; what operators ask of that stack, over HTTP; then 200 lists of 20 among 100,000 ended batches "
    "of one tenant.",
    1.1,
    measure,
)
