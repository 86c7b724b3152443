"""Section of the benchmark: duration and CPU time of batches that have only one line.

The batches run one at a time, and then a hundred at the same time. They are compared with Temporal workflows
that have the same steps, but whose activities do nothing.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import psutil

from batchwright.starter.client import Client
from bench import batches
from bench.activities.harness import in_a_process
from bench.counted import events, log_statements, statements, wait_in_temporal
from bench.inputs import write_input
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import RunningStack, cpu_seconds, running_stack, simulator, wait_until_quiet
from bench.temporal_floor import ALONE as FLOOR_ALONE
from bench.temporal_floor import Floor

_IN_FLIGHT, _AT_ONCE, _COUNTED, _ALONE = 64, 100, 40, 5
_SECONDS, _POLL_SECONDS, _IDLE_SECONDS = 75.0, 0.02, 3.0


class _Counted(msgspec.Struct, frozen=True):
    """The work for one batch of one line.

    `statements` and `cpu_ms` are means of many batches that run at the same time. No client requests the
    state of these batches.

    Attributes:
        events: number of history events in Temporal.
        statements: number of SQL statements. The statements of an idle stack are subtracted.
        cpu_ms: CPU time in ms of the API, the worker, Temporal and PostgreSQL.
    """

    events: int
    statements: float
    cpu_ms: dict[str, float]


def measure(options: SectionOptions) -> list[Figure]:
    path = options.folder / "small.jsonl"
    write_input(path, 1)
    many = options.size(_AT_ONCE, 10)
    alone: list[float] = []
    together: list[float] = []
    floors: list[Floor] = []
    floor_server_ms: list[float] = []
    with (
        simulator() as backend,
        running_stack(options.folder / "small", backend.url, in_flight=_IN_FLIGHT) as stack,
        Client(stack.api) as client,
    ):
        file_id = batches.upload(client, path)
        batches.run_batch(client, file_id, 1)
        for number in options.turns(_SECONDS):
            wait_until_quiet(stack)
            alone += [_one(client, file_id) for _ in range(_ALONE)]
            together.append(_many(stack.api, file_id, many))
            wait_until_quiet(stack)
            before = _cpu(stack)["Temporal"]
            floors.append(in_a_process("bench.temporal_floor", Floor, stack.temporal, stack.namespace, many))
            used = _cpu(stack)["Temporal"] - before
            floor_server_ms.append(used / (many + 1 + FLOOR_ALONE) * 1000)  # the first one was not timed
            options.report(
                f"round {number}: {alone[-1]:.2f} s alone, {together[-1]:.1f} s for {many}; "
                f"Temporal alone: {floors[-1].alone_seconds[-1]:.2f} and {floors[-1].together_seconds:.1f} s"
            )
        counted = _count(stack, client, file_id, options.size(_COUNTED, 10))
    return [
        *_figures(many, alone, together, floors, counted),
        Figure("small.floor_cpu_ms.temporal", "CPU of the same steps, Temporal", floor_server_ms, "ms"),
    ]


def _one(client: Client, file_id: str) -> float:
    started = time.perf_counter()
    batches.wait(client, batches.create(client, file_id).id, 1, _POLL_SECONDS)
    return time.perf_counter() - started


def _many(api: str, file_id: str, count: int) -> float:
    """Create `count` batches from eight threads and wait until all are completed.

    Return the duration in seconds.
    """
    started = time.perf_counter()
    with Client(api) as client:
        for batch_id in _create_many(client, file_id, count):
            batches.wait(client, batch_id, 1)
    return time.perf_counter() - started


def _create_many(client: Client, file_id: str, count: int) -> list[str]:
    with ThreadPoolExecutor(8) as threads:
        made = threads.map(partial(batches.create, client), [file_id] * count)
        return [batch.id for batch in made]


def _count(stack: RunningStack, client: Client, file_id: str, count: int) -> _Counted:
    """Return the work that one batch causes, as the mean of `count` batches that run at the same time.

    The SQL statements are counted in a separate run, because logging them takes CPU time.
    """
    wait_until_quiet(stack)
    before = _cpu(stack)
    asyncio.run(wait_in_temporal(stack, _create_many(client, file_id, count)))
    wait_until_quiet(stack)
    cpu_ms = {name: (after - before[name]) / count * 1000 for name, after in _cpu(stack).items()}
    asyncio.run(log_statements(stack))
    start = statements(stack)
    time.sleep(_IDLE_SECONDS)
    idle = (statements(stack) - start) / _IDLE_SECONDS
    started, start = time.perf_counter(), statements(stack)
    made = _create_many(client, file_id, count)
    asyncio.run(wait_in_temporal(stack, made))
    executed = statements(stack) - start - idle * (time.perf_counter() - started)
    asyncio.run(log_statements(stack, "none"))
    return _Counted(asyncio.run(events(stack, made[0])), executed / count, cpu_ms)


def _cpu(stack: RunningStack) -> dict[str, float]:
    pids = stack.pids
    parts = {
        "API": pids.api,
        "worker": pids.worker,
        "Temporal": [pids.temporal],
        "PostgreSQL": [pids.postgres],
    }
    return {name: cpu_seconds(psutil.Process(pid) for pid in found) for name, found in parts.items()}


def _figures(
    many: int, alone: list[float], together: list[float], floors: list[Floor], counted: _Counted
) -> list[Figure]:
    floor_alone = [seconds for floor in floors for seconds in floor.alone_seconds]
    floor_together = [floor.together_seconds for floor in floors]
    return [
        Figure("small.alone_s", "one line, created to completed", alone, "s", Target(0.1)),
        Figure("small.many_s", f"{many} at once, until all are completed", together, "s", Target(4.0)),
        Figure("small.floor_alone_s", "the same steps in Temporal alone, with activities that do nothing",
               floor_alone, "s"),
        Figure("small.floor_many_s", f"{many} of them at once", floor_together, "s"),
        Figure("small.of_floor", f"{many} at once, times Temporal alone",
               [ours / floor for ours, floor in zip(together, floor_together, strict=True)]),
        Figure("small.events", "Temporal history events of a batch", [counted.events]),
        Figure("small.floor_events", "Temporal history events of the same steps",
               [floor.events for floor in floors]),
        Figure("small.statements", "SQL statements of a batch", [counted.statements]),
        *(
            Figure(f"small.cpu_ms.{name.lower()}", f"CPU of a batch, {name}", [used], "ms")
            for name, used in counted.cpu_ms.items()
        ),
        Figure("small.floor_cpu_ms", "CPU of the same steps, their worker",
               [floor.cpu_ms for floor in floors], "ms"),
    ]  # fmt: skip


SECTION = Section(
    "small",
    "Small batches",
    "Batches of one line of 1 KB, a simulator that answers at once, one worker. Then workflows on the same "
    "server that have the same steps, but activities that do nothing: what Temporal and its SDK take. Counts "
    "and CPU are of batches created at once, without requests for their state.",
    1.8,
    measure,
)
