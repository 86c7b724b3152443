"""Section of the benchmark: throughput of one, two and four workers, with one batch and with ten batches."""

from statistics import median

from batchwright.starter.client import Client
from bench import batches
from bench.inputs import write_input
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import Simulator, running_stack, simulator, wait_until_quiet

_IN_FLIGHT, _LATENCY_MS = 64, 100
IDEAL = _IN_FLIGHT / (_LATENCY_MS / 1000)  # requests/s of one worker that loses no time
_WORKERS, _BATCHES = (1, 2, 4), (1, 10)
_SECONDS = 55.0


def measure(options: SectionOptions) -> list[Figure]:
    """Measure requests per second with one, two and four workers, with one batch and with ten batches.

    The time is measured at the simulated backend, from the first request to the last response.
    """
    count = options.size(4_000, 500)
    one, ten = options.folder / "one.jsonl", options.folder / "ten.jsonl"
    write_input(one, count)
    write_input(ten, count // 10)
    rates: dict[tuple[int, int], list[float]] = {}
    with simulator("--latency-ms", str(_LATENCY_MS)) as backend:
        for workers in _WORKERS:
            folder = options.folder / f"workers-{workers}"
            with (
                running_stack(folder, backend.url, in_flight=_IN_FLIGHT, workers=workers) as stack,
                Client(stack.api) as client,
            ):
                files = {1: batches.upload(client, one), 10: batches.upload(client, ten)}
                for number in options.turns(_SECONDS):
                    for many in _BATCHES:
                        wait_until_quiet(stack)
                        rate = _rate(client, backend, files[many], many, count // many)
                        rates.setdefault((workers, many), []).append(rate)
                        options.report(
                            f"round {number}: {rate:,.0f} requests/s, {workers} workers, {many} batches"
                        )
    return _figures(rates)


def _rate(client: Client, backend: Simulator, file_id: str, many: int, count: int) -> float:
    backend.reset()
    made = [batches.create(client, file_id).id for _ in range(many)]
    for batch_id in made:
        batches.wait(client, batch_id, count)
    return many * count / backend.ledger().send_seconds


def _figures(rates: dict[tuple[int, int], list[float]]) -> list[Figure]:
    figures: list[Figure] = []
    for many in _BATCHES:
        alone = median(rates[1, many])
        name = "one batch" if many == 1 else f"{many} batches"
        for workers in _WORKERS[1:]:
            times = [rate / alone for rate in rates[workers, many]]
            target = Target(1.6, "at least") if workers == 2 else None
            what = f"{workers} workers on {name}, of one worker's rate"
            figures.append(Figure(f"workers.{workers}.of_one.{many}", what, times, target=target))
        for workers in _WORKERS:
            what = f"requests/s, {workers} worker{'s' * (workers > 1)} on {name}"
            figures.append(Figure(f"workers.{workers}.rate.{many}", what, rates[workers, many], "/s"))
    return figures


SECTION = Section(
    "workers",
    "Several workers",
    f"4,000 lines as one batch and as ten, every answer after {_LATENCY_MS} ms, {_IN_FLIGHT} in flight for "
    f"each worker ({IDEAL:,.0f} requests/s at best), between the simulator's first request and last answer.",
    2.4,
    measure,
)
