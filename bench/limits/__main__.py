"""`python -m bench.limits`: the table of docs/scheduling.md."""

from collections.abc import Callable
from typing import Annotated

import typer

from bench.limits.limits import LIMITS, SHARED, Limit
from bench.limits.scenarios import SCENARIOS
from bench.limits.simulation import Result, Scenario, runs

SEEDS = 20
_COLUMNS = ("limit", "goodput", "in trouble", "refused", "timed out", "waiting", "held up", "recovery")
HEADS = f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"


def limits_of(scenario: Scenario) -> dict[str, Callable[[], Limit]]:
    """Those that are compared in it, by name."""
    return {**LIMITS, **(SHARED if scenario.bursts else {})}


def row(name: str, result: Result) -> str:
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
    """Compare in-flight limits at an engine in trouble, on a virtual clock."""
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
