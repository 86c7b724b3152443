"""`python -m bench.limits`: the table of docs/scheduling.md."""

from typing import Annotated

import typer

from bench.limits.limits import LIMITS, SHARED
from bench.limits.scenarios import SCENARIOS
from bench.limits.simulation import Result, runs

_COLUMNS = ("limit", "goodput", "in trouble", "refused", "timed out", "waiting", "held up", "recovery")
_HEADS = f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"


def _row(name: str, result: Result) -> str:
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


def run(seeds: Annotated[int, typer.Option(min=1, help="Runs of each, by seed.")] = 20) -> None:
    """Compare in-flight limits at an engine in trouble, on a virtual clock."""
    for scenario in SCENARIOS:
        print(f"\n**{scenario.name}**\n\n{_HEADS}")
        for name, make in {**LIMITS, **(SHARED if scenario.bursts else {})}.items():
            print(_row(name, runs(scenario, make, range(seeds))))


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(prog_name="python -m bench.limits")


if __name__ == "__main__":
    main()
