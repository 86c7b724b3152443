"""Latency of /metrics and /v1/stats. The benchmark's section `serving` measures it after its batches."""

import asyncio
import time
from http.client import HTTPConnection
from urllib.parse import urlsplit

from batchwright.database.pool import open_connection_pool
from bench.results import Figure, Target, percentile
from bench.section import SectionOptions
from bench.stack import RunningStack

_WORKERS = 50
# Simulated workers, whose heartbeats stay valid for an hour. Each has sent requests of 10 models to 10
# backends.
_FILL = """
INSERT INTO workers (id, stats, beat_at, registry, traffic)
SELECT 'bench:' || n, '{}', now() + interval '1 hour', '', lanes FROM generate_series(1, $1::integer) n, (
    SELECT jsonb_agg(jsonb_build_object('model', 'model-' || m, 'backend', 'http://backend-' || b || ':8000',
        'requests', 1000, 'errors', 10, 'seconds', 500.5, 'pending', 1)) AS lanes
    FROM generate_series(1, 10) m, generate_series(1, 10) b) sent"""


def measure(stack: RunningStack, options: SectionOptions) -> list[Figure]:
    worker, calls = stack.metrics[1], options.size(100, 10)
    shown = [_request_p95_ms(worker, calls) for _ in range(options.rounds)]
    alone = [_request_p95_ms(f"{stack.api}/v1/stats", calls) for _ in range(options.rounds)]
    asyncio.run(_fill(stack))
    among = [_request_p95_ms(f"{stack.api}/v1/stats", calls) for _ in range(options.rounds)]
    what = f"/v1/stats of {_WORKERS} workers, 10 models at 10 backends each, p95"
    return [
        Figure(
            "serving.metrics_ms", "/metrics of its worker, the SDK's with it, p95", shown, "ms", Target(1.0)
        ),
        Figure("serving.stats_ms", "/v1/stats of one worker, p95", alone, "ms", Target(2.0)),
        Figure("serving.stats_many_ms", what, among, "ms", Target(2.0)),
    ]


def _request_p95_ms(url: str, calls: int) -> float:
    """Send `calls` GET requests one after another.

    Return the 95th percentile of their durations in milliseconds.
    """
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    taken: list[float] = []
    for _ in range(calls):
        started = time.perf_counter()
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        answer.read()
        taken.append(1000 * (time.perf_counter() - started))
        if answer.status != 200:
            raise SystemExit(f"{url} answered {answer.status}")
    connection.close()
    return percentile(taken, 0.95)


async def _fill(stack: RunningStack) -> None:
    connection = await open_connection_pool(stack.postgres, size=1, patience_seconds=10)
    await connection.execute(_FILL, _WORKERS)
    await connection.close()
