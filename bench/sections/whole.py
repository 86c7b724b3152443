"""A whole batch, upload to downloaded result, beside what a user would write or install instead."""

import statistics
from pathlib import Path

from bench import batches
from bench.batches import WholeBatch
from bench.inputs import write_input
from bench.options import Options
from bench.peers import run as peers
from bench.peers.run import Measured
from bench.results import Figure, Target
from bench.section import Section
from bench.stack import Stack, forget_peak, running, simulator, wait_until_quiet

IN_FLIGHT = 64
_SLOW_PEERS = {"plain_httpx": 2_000, "official": 2_000, "litellm_router": 400}
_NAMES = {
    "plain_httpx": "httpx loop",
    "official": "official client, semaphore",
    "litellm_router": "LiteLLM router, semaphore",
}
_TURN_SECONDS, _PEER_SECONDS = 160.0, 40.0
_WORKER_MIB = 256.0


def measure(options: Options) -> list[Figure]:
    count = options.size(50_000, 2_000)
    path = options.folder / "whole.jsonl"
    write_input(path, count)
    with simulator() as backend, running(options.folder / "whole", backend.url, in_flight=IN_FLIGHT) as stack:
        rounds = _rounds(options, stack, backend.url, path, count)
    with simulator() as backend:
        slow = _slow_peers(options, backend.url, path) if options.with_peers else {}
    path.unlink()
    bare, batch = [pair[0] for pair in rounds], [pair[1] for pair in rounds]
    return [*_compared(bare, batch, slow), *_costs(bare, batch)]


def _rounds(
    options: Options, stack: Stack, url: str, path: Path, count: int
) -> list[tuple[Measured, WholeBatch]]:
    """One after the other, so that both saw the same machine."""
    warm = path.with_name("warm.jsonl")
    write_input(warm, 500)
    batches.measure(stack, warm, 500)
    rounds: list[tuple[Measured, WholeBatch]] = []
    for number in options.turns(_TURN_SECONDS):
        wait_until_quiet(stack)
        bare = peers.measure("bare", url, path, IN_FLIGHT)
        for worker in stack.workers():
            forget_peak(worker)
        batch = batches.measure(stack, path, count)
        options.say(f"round {number}: {bare.rate:,.0f} requests/s bare, {batch.rate:,.0f} as a batch")
        rounds.append((bare, batch))
    return rounds


def _slow_peers(options: Options, url: str, path: Path) -> dict[str, list[Measured]]:
    """Fewer requests: their rate does not depend on the number."""
    found: dict[str, list[Measured]] = {}
    for name, full in _SLOW_PEERS.items():
        count = options.size(full, 200)
        part = path.with_name(f"{name}.jsonl")
        write_input(part, count)
        python = options.peers_python if name == "litellm_router" else None
        if name == "litellm_router" and python is None:
            options.say("LiteLLM is not installed: `make bench` installs it into a place of its own")
            continue
        for number in options.turns(_PEER_SECONDS):
            measured = peers.measure(name, url, part, IN_FLIGHT, python)
            options.say(f"round {number}: {measured.rate:,.0f} requests/s, {_NAMES[name]}")
            found.setdefault(name, []).append(measured)
        part.unlink()
    return found


def _compared(bare: list[Measured], batch: list[WholeBatch], slow: dict[str, list[Measured]]) -> list[Figure]:
    rates = [whole.rate for whole in batch]
    ratios = [whole.rate / alone.rate for alone, whole in zip(bare, batch, strict=True)]
    figures = [
        Figure("whole.of_bare", "of the bare loop's rate", ratios, target=Target(0.5, "at least", 0.8)),
    ]
    for name, runs in slow.items():
        # They ran after the batches: the middle of both is compared, not their rounds.
        times = [statistics.median(rates) / run.rate for run in runs]
        target = Target(3.0, "at least") if name == "plain_httpx" else None
        figures.append(
            Figure(f"whole.times.{name}", f"times the rate of: {_NAMES[name]}", times, target=target)
        )
    figures.append(Figure("rate.batch", "requests/s, Batchwright", rates, "/s"))
    figures.append(Figure("rate.bare", "requests/s, bare loop", [run.rate for run in bare], "/s"))
    figures += [
        Figure(f"rate.{name}", f"requests/s, {_NAMES[name]}", [run.rate for run in runs], "/s")
        for name, runs in slow.items()
    ]
    return figures


def _costs(bare: list[Measured], batch: list[WholeBatch]) -> list[Figure]:
    """CPU in microseconds a request."""

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
    "answered to another; the slow ones do so for fewer requests.",
    5.0,
    measure,
)
