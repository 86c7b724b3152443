"""`python -m bench.order`: compares rules for the order in which the batches of a tenant send lines.

The rules are compared in a simulation. The command prints the tables that docs/scheduling.md shows.
"""

from typing import Annotated

import typer

from bench.order.rules import RULES
from bench.order.scenarios import SCENARIOS, Scenario
from bench.order.simulation import OrderResult, runs

SEEDS = 10
_LAST = ("in time", "evenness", "longest pause", "answers per second")


def heads(scenario: Scenario) -> str:
    columns = ("rule", *scenario.groups, *_LAST)
    return "\n".join((f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"))


def row(name: str, scenario: Scenario, result: OrderResult) -> str:
    times = [f"{result.times[group]:,.0f} s" for group in scenario.groups]
    last = (
        f"{result.in_time:.1%}",
        f"{result.evenness:.2f}",
        f"{result.longest_pause:,.0f} s",
        f"{result.rate:.1f}",
    )
    return f"| {' | '.join((name, *times, *last))} |"


def run(seeds: Annotated[int, typer.Option(min=1, help="Runs of each, by seed.")] = SEEDS) -> None:
    """Compare rules for the order in which a tenant's batches send lines. Print a table for each scenario."""
    for scenario in SCENARIOS:
        print(f"\n**{scenario.name}**\n\n{heads(scenario)}")
        for name, make in RULES.items():
            print(row(name, scenario, runs(scenario, make, range(seeds))), flush=True)


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(prog_name="python -m bench.order")


if __name__ == "__main__":
    main()
