"""Section of the benchmark: benefit and cost of sending the lines of a batch in the order of their prompts.

There is a benefit if prompts begin with the same text. If they have nothing in common, there is only a cost.
"""

from contextlib import ExitStack
from random import Random
from typing import Literal

from bench import batches
from bench.cached_engine import CachedEngine, lines_with_shared_prompts, run_lines
from bench.inputs import write_unshared
from bench.longest_first import WORKS, seconds
from bench.prefix_order import best_ratio, hit_ratio, in_order, mixes
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import running_stack, simulator, wait_until_quiet

REPLICAS, BUDGET_TOKENS = 3, 6_000
_IN_FLIGHT = 64
_MIX_SECONDS, _SIMULATED_SECONDS, _SECONDS = 60.0, 1.0, 150.0
_STORED = (0, 100)
_DISPATCH = (("file order", False, False), ("without leaders", True, False), ("ours", True, True))
_LONGEST_FIRST_SEEDS = 20
_ORDERS: tuple[tuple[Literal["file", "hash", "prefix"], str], ...] = (
    ("file", "file order"),
    ("hash", "exact hash"),
    ("prefix", "ours"),
)


def measure(options: SectionOptions) -> list[Figure]:
    return [*_ratios(options), *_leaders(options), *_longest_first(options), *_cost(options)]


def _ratios(options: SectionOptions) -> list[Figure]:
    """Return figures: for each order of lines, the fraction of prompt tokens that are already in a cache.

    Each replica of the backend has such a cache, which stores the beginnings of earlier prompts. Each round
    has different prompts.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for number in options.turns(_MIX_SECONDS):
        for name, lines in mixes(options.size(4_000, 1_500), seed=number).items():
            hits = {
                order: hit_ratio(in_order(lines, order), replicas=REPLICAS, budget_tokens=BUDGET_TOKENS)
                for order, _ in _ORDERS
            } | {"best": best_ratio(lines, replicas=REPLICAS)}
            options.report(f"round {number}: {name}: {hits}")
            for order, ratio in hits.items():
                found.setdefault(name, {}).setdefault(order, []).append(ratio)
    figures: list[Figure] = []
    for name, hits in found.items():
        key = name.replace(" ", "-")
        of_best = [ours / best for ours, best in zip(hits["prefix"], hits["best"], strict=True)]
        figures.append(Figure(f"order.{key}.of_best", f"{name}: ours, of the best", of_best,
                              target=Target(0.95, "at least")))  # fmt: skip
        for order, shown in (*_ORDERS, ("best", "the best possible")):
            figures.append(Figure(f"order.{key}.{order}", f"{name}: hit ratio, {shown}", hits[order]))
    return figures


def _leaders(options: SectionOptions) -> list[Figure]:
    """Return figures: the number of prompt tokens that an inference engine computes.

    Each figure is divided by the number of distinct prompt tokens. The engine is simulated, and serves four
    requests at a time. Three ways to send the lines are compared. Batchwright's way sends one line with each
    system prompt first. The engine can then reuse this prompt for the other lines.
    """
    computed: dict[tuple[str, int], list[float]] = {}
    for number in options.turns(_SIMULATED_SECONDS):
        for stored in _STORED:
            engine = CachedEngine(stored=stored)
            for name, is_sorted, is_grouped in _DISPATCH:
                lines = lines_with_shared_prompts(600, 12, Random(number), is_grouped=is_grouped)
                if is_sorted:
                    lines.sort(key=lambda line: line.prompt)
                stated = engine.slots if is_grouped else None
                result = run_lines(engine, lines, permits=engine.slots, stated=stated)
                computed.setdefault((name, stored), []).append(result.computed)
                options.report(f"round {number}: {name}, {stored} prompts in memory: {result}")
    return [
        Figure(f"order.leaders.{name}.{stored}".replace(" ", "-"),
               f"prompt tokens computed, {name}, {stored} prompts in memory", found,
               target=Target(1.2, aim=1.1) if name == "ours" else None)
        for (name, stored), found in computed.items()
    ]  # fmt: skip


def _longest_first(options: SectionOptions) -> list[Figure]:
    """Compare batches whose longest lines are sent first with the same batches in the order of the file.

    Return a figure for each kind of batch: the duration with the longest lines first, divided by the duration
    in the order of the file. The durations are simulated.
    """
    figures: list[Figure] = []
    for name, work in WORKS.items():
        found = [
            seconds(work, 384, number, "prefix") / seconds(work, 384, number, "file")
            for number in range(_LONGEST_FIRST_SEEDS)
        ]
        options.report(f"longest first: {name}: {found}")
        figures.append(Figure(f"order.longest.{name}".replace(" ", "-"),
                              f"{name}: a batch's time, of that in file order", found))  # fmt: skip
    return figures


def _cost(options: SectionOptions) -> list[Figure]:
    """Compare a batch whose lines are sorted by prompt with the same batch in the order of the file.

    Return a figure: the first duration divided by the second. Two embedded stacks run the batches
    alternately.
    """
    count = options.size(50_000, 2_000)
    folder = options.folder / "unshared"
    folder.mkdir()
    path = folder / "input.jsonl"
    write_unshared(path, count)
    slower: list[float] = []
    with ExitStack() as running_stacks:
        backend = running_stacks.enter_context(simulator())
        stacks = {
            order: running_stacks.enter_context(
                running_stack(
                    folder / order,
                    backend.url,
                    in_flight=_IN_FLIGHT,
                    settings={"BATCHWRIGHT_PLAN_ORDER": order},
                )
            )
            for order in ("file", "prefix")
        }
        for stack in stacks.values():
            batches.measure(stack, path, count)  # the first batch of a process is slower
        for number in options.turns(_SECONDS):
            taken: dict[str, float] = {}
            for order in ("file", "prefix") if number % 2 else ("prefix", "file"):
                wait_until_quiet(stacks[order])
                taken[order] = batches.measure(stacks[order], path, count).seconds
            slower.append(taken["prefix"] / taken["file"])
            options.report(f"round {number}: {taken['prefix']:.2f} s, in file order {taken['file']:.2f} s")
    path.unlink()
    return [
        Figure("order.unshared", "nothing shared: a batch's time, of that in file order", slower,
               target=Target(1.02)),
    ]  # fmt: skip


SECTION = Section(
    "order",
    "Order pays",
    f"4,000 prompts of 4 KB in random order, {REPLICAS} replicas with a prefix cache of {BUDGET_TOKENS:,} "
    "tokens each; a prompt's beginning decides its replica, four slices are sent at once. Computed with the "
    "simulator's cache, each round with other prompts. Simulated, too: 600 lines with 12 system prompts at "
    "an engine with four slots, which has memory for no more prompts or for 100; and 384 lines with 64 "
    "requests in flight, with and without `max_tokens` that tell how long a response takes. Then 50,000 "
    "lines with nothing in common, a simulator that answers at once, on two stacks in turns: one in our "
    "order, one in file order.",
    3.5,
    measure,
)
