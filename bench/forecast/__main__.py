"""`python -m bench.forecast`: shows how exact Batchwright's forecasts of the end of a batch are.

The command simulates batches, and compares forecasts of their ends with the actual ends. It prints the tables
that docs/scheduling.md shows.

The random numbers of a simulation are computed from its seed. The constants of the forecasts were fitted to
the batches of the default seeds. With `--fresh`, the seeds are different, so the constants were not fitted to
the simulated batches.
"""

from collections.abc import Sequence
from statistics import median
from typing import Annotated

import typer

from batchwright.contracts.temporal_payloads.batch import StartFit
from bench.forecast.scenarios import SCENARIOS, STARTS
from bench.forecast.simulation import STAGES, JudgedForecast, JudgedStart, judged

SEEDS, FIRST_FRESH_SEED = 20, 1000
HEADS = (
    "| scenario | error after 10 % | after 50 % | after 80 % | within p50 | within p90 | forecasts |\n"
    "|---|---|---|---|---|---|---|"
)

START_HEADS = (
    "| scenario | error | within p90 | `fits`: in time | `at_risk`: in time | `cannot`: in time |\n"
    "|---|---|---|---|---|---|"
)


def row(name: str, forecasts: Sequence[JudgedForecast]) -> str:
    """Return the table row of one scenario (simulated situation), about forecasts for running batches.

    The forecasts were made when 10 %, 50 % or 80 % of the lines of a batch were done. A forecast has two
    times, p50 and p90. The batch should end before p50 with a probability of 50 %, and before p90 with a
    probability of 90 %. The row has these columns:

    - three columns: the median error of the forecasts after 10 %, 50 % and 80 %
    - two columns: the percentage of forecasts whose batch ended before p50, and before p90
    - the number of forecasts

    Args:
        name: name of the scenario.
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


def start_row(name: str, starts: Sequence[JudgedStart]) -> str:
    """Return the table row of one scenario (simulated situation), about forecasts at the start of batches.

    A forecast has the times p50 and p90. The batch should end before p50 with a probability of 50 %, and
    before p90 with a probability of 90 %. A forecast also has a word about the completion window of the
    batch: `fits`, `at_risk` or `cannot`. The row has these columns:

    - the median error of p50
    - the percentage of batches that ended before p90
    - a column for each word, such as `3 of 5`: of 5 batches with this word, 3 ended within their windows

    Args:
        name: name of the scenario.
    """
    error = median(abs(each.expected.p50 - each.actual) / each.actual for each in starts)
    within = sum(each.actual <= each.expected.p90 for each in starts) / len(starts)
    cells = [f"{error:.0%}", f"{within:.0%}"]
    for fit in StartFit:
        in_time = [each.actual <= each.window for each in starts if each.fit is fit]
        cells.append(f"{sum(in_time)} of {len(in_time)}")
    return f"| {name} | {' | '.join(cells)} |"


def run(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each, by seed.")] = SEEDS,
    fresh: Annotated[bool, typer.Option("--fresh", help="Use seeds that nothing was fitted to.")] = False,
) -> None:
    """Compare forecasts with the actual ends of simulated batches.

    Print tables with a row for each scenario (simulated situation).
    """
    first = FIRST_FRESH_SEED if fresh else 0
    of_each = range(first, first + seeds)
    print(HEADS)
    everything: list[JudgedForecast] = []
    for scenario in SCENARIOS:
        forecasts = judged(scenario, of_each).forecasts
        everything += forecasts
        print(row(scenario.name, forecasts), flush=True)
    print(row("all", everything))
    print(f"\n{START_HEADS}")
    for scenario in STARTS:
        print(start_row(scenario.name, judged(scenario, of_each).starts), flush=True)


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(prog_name="python -m bench.forecast")


if __name__ == "__main__":
    main()
