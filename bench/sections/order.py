"""Section: benefit of sending lines sorted by prompt, and the cost if the prompts have nothing in common."""

from contextlib import ExitStack
from typing import Literal

from bench import batches
from bench.inputs import write_unshared
from bench.prefix_order import best_ratio, hit_ratio, in_order, mixes
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import running_stack, simulator, wait_until_quiet

REPLICAS, BUDGET_TOKENS = 3, 6_000
_IN_FLIGHT = 64
_MIX_SECONDS, _SECONDS = 60.0, 150.0
_ORDERS: tuple[tuple[Literal["file", "hash", "prefix"], str], ...] = (
    ("file", "file order"),
    ("hash", "exact hash"),
    ("prefix", "ours"),
)


def measure(options: SectionOptions) -> list[Figure]:
    return [*_ratios(options), *_cost(options)]


def _ratios(options: SectionOptions) -> list[Figure]:
    """Return the fraction of cached tokens for each order of lines. Each round has different prompts."""
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


def _cost(options: SectionOptions) -> list[Figure]:
    """Measure a batch with lines sorted by prompt, and the same batch with lines in the order of the file.

    Two local stacks run the batches in turns.
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
            seconds: dict[str, float] = {}
            for order in ("file", "prefix") if number % 2 else ("prefix", "file"):
                wait_until_quiet(stacks[order])
                seconds[order] = batches.measure(stacks[order], path, count).seconds
            slower.append(seconds["prefix"] / seconds["file"])
            options.report(
                f"round {number}: {seconds['prefix']:.2f} s, in file order {seconds['file']:.2f} s"
            )
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
    "simulator's cache, each round with other prompts. Then 50,000 lines with nothing in common, a simulator "
    "that answers at once, on two stacks in turns: one in our order, one in file order.",
    3.5,
    measure,
)
