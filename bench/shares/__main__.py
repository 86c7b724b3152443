"""`python -m bench.shares`: simulates several rules that divide the permits of a model between tenants.

A permit is the right to have one request in flight. The command prints the tables that docs/scheduling.md
shows.
"""

from typing import Annotated

import typer

from bench.shares.rules import RULES
from bench.shares.scenarios import SCENARIOS
from bench.shares.simulation import ShareResult, runs

SEEDS = 10
_LISTED = 3  # shares of more tenants are shown as a range
HEADS = "| rule | evenness | least even minute | shares | newcomer's wait |\n|---|---|---|---|---|"


def row(name: str, result: ShareResult) -> str:
    shares = " : ".join(f"{share:.0%}" for share in result.shares)
    if len(result.shares) > _LISTED:
        shares = f"{min(result.shares):.0%} to {max(result.shares):.0%}"
    wait = "" if result.wait is None else f"{result.wait:.2f} s"
    return f"| {name} | {result.evenness:.3f} | {result.least_even:.3f} | {shares} | {wait} |"


def run(seeds: Annotated[int, typer.Option(min=1, help="Runs of each, by seed.")] = SEEDS) -> None:
    """Compare rules for sharing permits between tenants, and print a table for each scenario."""
    for scenario in SCENARIOS:
        print(f"\n**{scenario.name}**\n\n{HEADS}")
        for name, make in RULES.items():
            print(row(name, runs(scenario, make, range(seeds))), flush=True)


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(prog_name="python -m bench.shares")


if __name__ == "__main__":
    main()
