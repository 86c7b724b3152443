"""What the order of a plan is worth, and what it costs where nothing is shared."""

from statistics import median

from bench import batches
from bench.activity import in_a_process
from bench.ingest_once import Ingested
from bench.inputs import write_unshared
from bench.options import Options
from bench.prefix_order import best_ratio, hit_ratio, in_order, mixes
from bench.results import Figure, Target
from bench.section import Section
from bench.stack import running, simulator, wait_until_quiet

REPLICAS, BUDGET_TOKENS = 3, 6_000
_IN_FLIGHT = 64
_SECONDS = 60.0


def measure(options: Options) -> list[Figure]:
    return [*_ratios(options), *_cost(options)]


def _ratios(options: Options) -> list[Figure]:
    """These are computed: every round would give the same."""
    figures: list[Figure] = []
    for name, lines in mixes(options.size(4_000, 1_500)).items():
        best = best_ratio(lines, replicas=REPLICAS)
        found = {
            order: hit_ratio(in_order(lines, order), replicas=REPLICAS, budget_tokens=BUDGET_TOKENS)
            for order in ("file", "hash", "prefix")
        }
        options.say(f"{name}: {found}, at best {best:.3f}")
        key = name.replace(" ", "-")
        of_best = Figure(f"order.{key}.of_best", f"{name}: ours, of the best", [found["prefix"] / best],
                         target=Target(0.95, "at least"))  # fmt: skip
        figures.append(of_best)
        for order, shown in (("file", "file order"), ("hash", "exact hash"), ("prefix", "ours")):
            figures.append(Figure(f"order.{key}.{order}", f"{name}: hit ratio, {shown}", [found[order]]))
        figures.append(Figure(f"order.{key}.best", f"{name}: hit ratio, the best possible", [best]))
    return figures


def _cost(options: Options) -> list[Figure]:
    """What ingestion takes longer than in file order, of the shortest time such a batch can take."""
    count = options.size(20_000, 2_000)
    folder = options.folder / "unshared"
    folder.mkdir()
    path = folder / "input"
    write_unshared(path, count)
    more: list[float] = []
    whole: list[float] = []
    with simulator() as backend:
        settings = {"BATCHWRIGHT_PLAN_ORDER": "file"}
        with running(folder / "stack", backend.url, in_flight=_IN_FLIGHT, settings=settings) as stack:
            for number in options.turns(_SECONDS):
                wait_until_quiet(stack)
                ours = in_a_process("bench.ingest_once", Ingested, folder, "prefix").seconds
                file = in_a_process("bench.ingest_once", Ingested, folder, "file").seconds
                more.append(ours - file)
                whole.append(batches.measure(stack, path, count).seconds)
                options.say(f"round {number}: {more[-1]:+.2f} s of ingestion, {whole[-1]:.1f} s in all")
    slower = [1 + extra / median(whole) for extra in more]
    return [
        Figure("order.unshared", "nothing shared: a batch's time, of that in file order", slower,
               target=Target(1.02)),
    ]  # fmt: skip


SECTION = Section(
    "order",
    "Order pays",
    f"4,000 prompts of 4 KB in random order, {REPLICAS} replicas with a prefix cache of {BUDGET_TOKENS:,} "
    "tokens each; a prompt's beginning decides its replica, four slices are sent at once. Computed with the "
    "simulator's cache. Then 20,000 lines with nothing in common, a simulator that answers at once.",
    1.2,
    measure,
)
