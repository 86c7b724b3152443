"""`python -m bench.forecast`: compares forecasts for simulated batches with the actual ends.

It prints the table in docs/scheduling.md.
"""

from collections.abc import Sequence
from statistics import median
from typing import Annotated

import typer

from bench.forecast.scenarios import SCENARIOS
from bench.forecast.simulation import STAGES, JudgedForecast, judged_forecasts

SEEDS = 20
HEADS = (
    "| scenario | error after 10 % | after 50 % | after 80 % | within p50 | within p90 | forecasts |\n"
    "|---|---|---|---|---|---|---|"
)


def row(name: str, forecasts: Sequence[JudgedForecast]) -> str:
    """Return the table row of a scenario: median error of the forecasts, and how often p50 and p90 were kept.

    The errors are by stage, the fraction of the batch that was done when the forecast was made.
    """
    errors = [median(each.error for each in forecasts if each.stage == stage) for stage in STAGES]
    shown = " | ".join(f"{error:.0%}" for error in errors)
    within = " | ".join(
        f"{sum(times) / len(times):.0%}"
        for times in (
            [each.actual <= each.p50 for each in forecasts],
            [each.actual <= each.p90 for each in forecasts],
        )
    )
    return f"| {name} | {shown} | {within} | {len(forecasts):,} |"


def run(seeds: Annotated[int, typer.Option(min=1, help="Runs of each, by seed.")] = SEEDS) -> None:
    """Compare forecasts with the actual ends of simulated batches.

    Print a table with a row for each scenario.
    """
    print(HEADS)
    everything: list[JudgedForecast] = []
    for scenario in SCENARIOS:
        forecasts = judged_forecasts(scenario, range(seeds))
        everything += forecasts
        print(row(scenario.name, forecasts), flush=True)
    print(row("all", everything))


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(prog_name="python -m bench.forecast")


if __name__ == "__main__":
    main()
