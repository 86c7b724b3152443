"""Section of the benchmark: a whole batch from upload to download, compared with alternatives to Batchwright.

The alternatives, called peers, are programs that a user would write or install.
"""

import statistics
from pathlib import Path

from bench import batches
from bench.batches import WholeBatch
from bench.inputs import write_input
from bench.peers import run as peers
from bench.peers.run import Measured
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import RunningStack, forget_peak, running_stack, simulator, wait_until_quiet

IN_FLIGHT = 64
_SLOW_PEERS = {"plain_httpx": 2_000, "official": 2_000, "litellm_router": 400}
_NAMES = {
    "plain_httpx": "httpx loop",
    "official": "official client, semaphore",
    "litellm_router": "LiteLLM router, semaphore",
}
_HTTPX_IN_FLIGHT = (4, 8, 16, 32, 64, 100)  # 100 is the default limit of httpx
_TURN_SECONDS, _PEER_SECONDS = 240.0, 40.0
_WORKER_MIB = 256.0


def measure(options: SectionOptions) -> list[Figure]:
    count = options.size(50_000, 2_000)
    path = options.folder / "whole.jsonl"
    write_input(path, count)
    with (
        simulator() as backend,
        running_stack(options.folder / "whole", backend.url, in_flight=IN_FLIGHT) as stack,
    ):
        rounds = _rounds(options, stack, backend.url, path, count)
    with simulator() as backend:
        slow = _slow_peers(options, backend.url, path) if options.with_peers else {}
    path.unlink()
    bare, loop, batch = (list(column) for column in zip(*rounds, strict=True))
    return [*_compared(bare, loop, batch, slow), *_costs(bare, batch)]


def _rounds(
    options: SectionOptions, stack: RunningStack, url: str, path: Path, count: int
) -> list[tuple[Measured, Measured, WholeBatch]]:
    """Measure the bare loop, the aiohttp loop and a batch in each round. Return the results by round.

    The two loops are peers (alternatives to Batchwright). In each round, the three measurements follow one
    another, so that the load of the machine is similar for all of them.
    """
    warm = path.with_name("warm.jsonl")
    write_input(warm, 500)
    batches.measure(stack, warm, 500)
    rounds: list[tuple[Measured, Measured, WholeBatch]] = []
    for number in options.turns(_TURN_SECONDS):
        wait_until_quiet(stack)
        bare = peers.measure("bare", url, path, IN_FLIGHT)
        loop = peers.measure("aiohttp_uvloop", url, path, IN_FLIGHT)
        for worker in stack.workers():
            forget_peak(worker)
        batch = batches.measure(stack, path, count)
        options.report(
            f"round {number}: {bare.rate:,.0f} requests/s bare, {loop.rate:,.0f} with aiohttp, "
            f"{batch.rate:,.0f} as a batch"
        )
        rounds.append((bare, loop, batch))
    return rounds


def _slow_peers(options: SectionOptions, url: str, path: Path) -> dict[str, list[Measured]]:
    """Measure the slow peers (alternatives to Batchwright), and return their results by name.

    Few requests are enough, because the rate of these peers does not depend on the number of requests.
    """
    found: dict[str, list[Measured]] = {}
    for name, full in _SLOW_PEERS.items():
        count = options.size(full, 200)
        part = path.with_name(f"{name}.jsonl")
        write_input(part, count)
        python = options.peers_python if name == "litellm_router" else None
        if name == "litellm_router" and python is None:
            options.report("LiteLLM is not installed: `make bench` installs it into a place of its own")
            continue
        in_flight = _best_for_httpx(options, url, path) if name == "plain_httpx" else IN_FLIGHT
        for number in options.turns(_PEER_SECONDS):
            measured = peers.measure(name, url, part, in_flight, python)
            options.report(f"round {number}: {measured.rate:,.0f} requests/s, {_NAMES[name]}")
            found.setdefault(name, []).append(measured)
        part.unlink()
    return found


def _best_for_httpx(options: SectionOptions, url: str, path: Path) -> int:
    """Return the number of requests in flight with which the peer `plain_httpx` is fastest."""
    part = path.with_name("httpx-in-flight.jsonl")
    write_input(part, options.size(600, 100))
    rates = {number: peers.measure("plain_httpx", url, part, number).rate for number in _HTTPX_IN_FLIGHT}
    part.unlink()
    options.report(
        f"httpx loop by requests in flight: { ({each: round(rate) for each, rate in rates.items()}) }"
    )
    return max(rates, key=rates.__getitem__)


def _compared(
    bare: list[Measured], loop: list[Measured], batch: list[WholeBatch], slow: dict[str, list[Measured]]
) -> list[Figure]:
    rates = [whole.rate for whole in batch]
    ratios = [whole.rate / alone.rate for alone, whole in zip(bare, batch, strict=True)]
    figures = [
        Figure("whole.of_bare", "of the bare loop's rate", ratios, target=Target(0.5, "at least", 0.8)),
        Figure(
            "whole.times.aiohttp",
            "times the rate of: aiohttp loop on uvloop",
            [whole.rate / one.rate for one, whole in zip(loop, batch, strict=True)],
        ),
    ]
    for name, runs in slow.items():
        # The slow peers ran after the batches, so medians are compared instead of rounds.
        times = [statistics.median(rates) / run.rate for run in runs]
        target = Target(3.0, "at least") if name == "plain_httpx" else None
        figures.append(
            Figure(f"whole.times.{name}", f"times the rate of: {_NAMES[name]}", times, target=target)
        )
    figures.append(Figure("rate.batch", "requests/s, Batchwright", rates, "/s"))
    figures.append(Figure("rate.bare", "requests/s, bare loop", [run.rate for run in bare], "/s"))
    figures.append(
        Figure("rate.aiohttp", "requests/s, aiohttp loop on uvloop", [run.rate for run in loop], "/s")
    )
    figures += [
        Figure(f"rate.{name}", f"requests/s, {_NAMES[name]}", [run.rate for run in runs], "/s")
        for name, runs in slow.items()
    ]
    return figures


def _costs(bare: list[Measured], batch: list[WholeBatch]) -> list[Figure]:
    """Return the measured costs (figures) of a batch, compared with the bare loop.

    They are CPU times per request in microseconds, durations in seconds, and memory in MiB.
    """

    def each(attribute: str) -> list[float]:
        return [getattr(whole, attribute) / whole.requests * 1e6 for whole in batch]

    ours = each("cpu_seconds")
    more = [mine - alone.cpu_us for mine, alone in zip(ours, bare, strict=True)]
    return [
        Figure("whole.durability_us", "CPU of API and worker a request, less the bare loop's", more, "us",
               Target(150.0)),
        Figure("whole.cpu_bare_us", "CPU a request, bare loop", [alone.cpu_us for alone in bare], "us"),
        Figure("whole.cpu_worker_us", "CPU a request, worker", each("worker_cpu_seconds"), "us"),
        Figure("whole.cpu_servers_us", "CPU a request, Temporal and PostgreSQL", each("server_cpu_seconds"),
               "us"),
        Figure("whole.upload_s", "seconds of it for the upload", [w.upload_seconds for w in batch], "s"),
        Figure("whole.run_s", "seconds of it from create to completed", [w.run_seconds for w in batch], "s"),
        Figure("whole.download_s", "seconds of it for the download", [w.download_seconds for w in batch],
               "s"),
        Figure("whole.worker_mib", "worker's memory at its most", [w.worker_peak_mib for w in batch], "MiB",
               Target(_WORKER_MIB)),
    ]  # fmt: skip


SECTION = Section(
    "whole",
    "A whole batch beside its alternatives",
    "50,000 chat requests of 1 KB, a simulator that answers at once, 64 in flight, one worker process; "
    "from the upload's first byte to the download's last. The loops read the same file and append what is "
    "answered to another; the slow ones do so for fewer requests. The httpx loop has the number of requests "
    "in flight that is best for it.",
    6.5,
    measure,
)
