"""Section of the benchmark: CPU time that the worker needs for each line of a batch.

The section shows which part of this CPU time each stage (kind of work, such as reading the input) uses. The
CPU time of the API and the worker is compared with that of a simple program that only sends the requests.
"""

import signal
import subprocess
from pathlib import Path

import psutil

from bench import batches
from bench.call_stacks import read_stacks, record_command
from bench.inputs import write_input
from bench.peers import run as peers
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import running_stack, simulator, wait_until_quiet
from bench.stage_attribution import STAGES, shares

_IN_FLIGHT, _SECONDS = 64, 90.0
_SDK_THREADS = "tokio"  # the threads of Temporal's SDK, which py-spy does not see, have names with this word
_SDK = "Temporal's SDK, outside Python"


def measure(options: SectionOptions) -> list[Figure]:
    """Measure the CPU time of whole batches. Then measure with a profiler which part of it each stage uses.

    The profiler is off in the first measurement, because the profiler itself uses CPU time.
    """
    count = options.size(50_000, 2_000)
    path, out = options.folder / "stages.jsonl", options.folder / "stages.raw"
    write_input(path, count)
    of_loop: list[float] = []
    cpu_us: list[float] = []
    with (
        simulator() as backend,
        running_stack(options.folder / "stages", backend.url, in_flight=_IN_FLIGHT) as stack,
    ):
        for number in options.turns(_SECONDS):
            wait_until_quiet(stack)
            loop = peers.measure("aiohttp_uvloop", backend.url, path, _IN_FLIGHT)
            batch = batches.measure(stack, path, count)
            of_loop.append(batch.cpu_seconds / count * 1e6 / loop.cpu_us)
            cpu_us.append(batch.worker_cpu_seconds / count * 1e6)
            options.report(f"round {number}: {of_loop[-1]:.2f} of the aiohttp loop's CPU")
        (worker,) = stack.pids.worker
        before = _sdk_seconds(worker), _all_seconds(worker)
        with subprocess.Popen([*record_command(out), "--pid", str(worker)]) as sampling:
            batches.measure(stack, path, count)
            outside = (_sdk_seconds(worker) - before[0]) / (_all_seconds(worker) - before[1])
            sampling.send_signal(signal.SIGINT)
            sampling.wait(60)
    return _figures(of_loop, cpu_us, outside, out)


def _figures(of_loop: list[float], cpu_us: list[float], outside: float, out: Path) -> list[Figure]:
    found = shares(read_stacks(out.read_text().splitlines()))
    return [
        Figure("stages.of_aiohttp", "CPU of API and worker for a request, of the aiohttp loop's", of_loop,
               target=Target(1.0)),
        Figure("stages.worker_us", "CPU of the worker for a request", cpu_us, "us"),
        *(
            Figure(f"stages.share.{number}", f"share of it: {stage}", [found[stage] * (1 - outside) * 100],
                   "%")
            for number, stage in enumerate(STAGES)
        ),
        Figure("stages.share.sdk", f"share of it: {_SDK}", [outside * 100], "%"),
    ]  # fmt: skip


def _all_seconds(pid: int) -> float:
    return sum(thread.user_time + thread.system_time for thread in psutil.Process(pid).threads())


def _sdk_seconds(pid: int) -> float:
    """Return the CPU time of the process's threads that belong to Temporal's SDK."""
    return sum(
        thread.user_time + thread.system_time
        for thread in psutil.Process(pid).threads()
        if _SDK_THREADS in Path(f"/proc/{pid}/task/{thread.id}/comm").read_text()
    )


SECTION = Section(
    "stages",
    "Cost of a line, by stage",
    "50,000 chat requests of 1 KB as one batch, a simulator that answers at once, 64 in flight, one worker; "
    "before each batch, a loop with aiohttp, uvloop and orjson sends the same requests. The shares are of "
    "the samples of the worker's call stacks in one more batch.",
    1.8,
    measure,
)
