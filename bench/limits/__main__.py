"""`python -m bench.limits`: compares concurrency limits in a simulation.

It prints the tables that docs/scheduling.md shows.
"""

from collections.abc import Callable
from typing import Annotated

import typer

from bench.limits.algorithms import LIMITS, SHARED, LimitAlgorithm
from bench.limits.scenarios import SCENARIOS
from bench.limits.simulation import LimitResult, Scenario, runs

SEEDS = 20
_COLUMNS = ("limit", "goodput", "in trouble", "refused", "timed out", "waiting", "held up", "recovery")
HEADS = f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"


def limits_of(scenario: Scenario) -> dict[str, Callable[[], LimitAlgorithm]]:
    """Return the concurrency limits to compare in a scenario (simulated situation).

    Each key is the name of a limit, and each value is a function that creates the limit.
    """
    return {**LIMITS, **(SHARED if scenario.bursts else {})}


def row(name: str, result: LimitResult) -> str:
    cells = (
        f"{result.goodput:.0%}",
        f"{result.in_trouble:.0%}" if result.in_trouble else "",
        f"{result.refused:.1f}",
        f"{result.timed_out:.1f}",
        f"{result.queue:.1f}",
        f"{result.held_up:.0%}" if result.held_up else "",
        f"{result.recovery:.0f} s" if result.recovery else "",
    )
    return f"| {name} | " + " | ".join(cells) + " |"


def run(seeds: Annotated[int, typer.Option(min=1, help="Runs of each, by seed.")] = SEEDS) -> None:
    """Compare concurrency limits on a simulated backend, and print a table for each scenario."""
    for scenario in SCENARIOS:
        print(f"\n**{scenario.name}**\n\n{HEADS}")
        for name, make in limits_of(scenario).items():
            print(row(name, runs(scenario, make, range(seeds))))


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(prog_name="python -m bench.limits")


if __name__ == "__main__":
    main()
