"""Section of the benchmark: how well workers use a slow backend while they send the lines of a batch."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from batchwright.starter.client import Client
from bench import batches
from bench.inputs import write_input
from bench.peers import run as peers
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import Simulator, running_stack, simulator, wait_until_quiet

IN_FLIGHT, LATENCY_MS = 256, 50
IDEAL = IN_FLIGHT / (LATENCY_MS / 1000)  # requests/s of one process that loses no time
_SECONDS = 95.0


def measure(options: SectionOptions) -> list[Figure]:
    """Compare the rate (requests per second) of one worker with that of a simple program, the bare loop.

    Also compare two workers with the ideal rate. The bare loop uses only asyncio and Batchwright's HTTP
    transport. The ideal rate is that of a process that loses no time between two requests.
    """
    count = options.size(20_000, 2_000)
    path, *halves = (options.folder / f"send{name}.jsonl" for name in ("", "-first", "-second"))
    write_input(path, count)
    for half in halves:
        write_input(half, count // 2)
    bare: dict[int, list[float]] = {}
    aiohttp: list[float] = []
    rates: dict[int, list[float]] = {}
    with simulator("--latency-ms", str(LATENCY_MS)) as backend:
        for workers in (1, 2):
            folder = options.folder / f"send-{workers}"
            with (
                running_stack(folder, backend.url, in_flight=IN_FLIGHT // workers, workers=workers) as stack,
                Client(stack.api) as client,
            ):
                file_id = batches.upload(client, path)
                for number in options.turns(_SECONDS):
                    wait_until_quiet(stack)
                    alone = _sent_by("bare", backend, [path] if workers == 1 else halves, count)
                    bare.setdefault(workers, []).append(alone)
                    if workers == 1:
                        aiohttp.append(_sent_by("aiohttp_uvloop", backend, [path], count))
                    rate = _sent(client, backend, file_id, count)
                    options.report(f"round {number}: {rate:,.0f} requests/s with {workers} worker(s)")
                    rates.setdefault(workers, []).append(rate)
    for used in (path, *halves):
        used.unlink()
    return _figures(bare, aiohttp, rates)


def _sent(client: Client, backend: Simulator, file_id: str, count: int) -> float:
    """Run a batch and return its requests per second, measured at the simulator.

    The measured time is from the first request to the last response.
    """
    backend.reset()
    batches.run_batch(client, file_id, count)
    return count / backend.ledger().send_seconds


def _sent_by(peer: str, backend: Simulator, paths: list[Path], count: int) -> float:
    """Send the lines of the input files with a peer (alternative to Batchwright).

    Each file has its own process. All processes run at the same time. Return the requests per second,
    measured at the simulator from the first request to the last response.

    Args:
        peer: name of the peer, which is a module in bench.peers.
        paths: the input files. IN_FLIGHT (allowed requests in flight) is divided among the processes.
        count: number of lines of all files together.
    """
    backend.reset()
    each = partial(peers.measure, peer, backend.url, in_flight=IN_FLIGHT // len(paths))
    with ThreadPoolExecutor(len(paths)) as loops:
        list(loops.map(each, paths))
    return count / backend.ledger().send_seconds


def _figures(
    bare: dict[int, list[float]], aiohttp: list[float], rates: dict[int, list[float]]
) -> list[Figure]:
    of_bare = {
        workers: [mine / alone for mine, alone in zip(rates[workers], bare[workers], strict=True)]
        for workers in (1, 2)
    }
    return [
        Figure("send.of_bare", "one worker, of the bare loop's rate", of_bare[1],
               target=Target(0.95, "at least")),
        Figure("send.two_of_ideal", "two workers, of the ideal", [rate / IDEAL for rate in rates[2]],
               target=Target(0.9, "at least")),
        Figure("send.times_aiohttp", "one worker, times the rate of an aiohttp loop on uvloop",
               [mine / loop for mine, loop in zip(rates[1], aiohttp, strict=True)]),
        Figure("send.one_of_ideal", "one worker, of the ideal", [rate / IDEAL for rate in rates[1]]),
        Figure("send.bare_of_ideal", "bare loop, of the ideal", [rate / IDEAL for rate in bare[1]]),
        Figure("send.two_of_two_bare", "two workers, of two bare loops' rate", of_bare[2]),
        Figure("send.two_bare_of_ideal", "two bare loops, of the ideal", [rate / IDEAL for rate in bare[2]]),
    ]  # fmt: skip


SECTION = Section(
    "send",
    "The send phase before a slow backend",
    f"20,000 requests, every answer after {LATENCY_MS} ms, {IN_FLIGHT} in flight over all workers: "
    f"{IDEAL:,.0f} requests/s is the ideal. Between the simulator's first request and its last answer.",
    2.8,
    measure,
)
