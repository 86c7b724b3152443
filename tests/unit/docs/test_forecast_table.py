"""The forecast tables in docs/scheduling.md are equal to the output of `python -m bench.forecast`."""

from pathlib import Path

import pytest

from bench.forecast.__main__ import FIRST_FRESH_SEED, HEADS, SEEDS, START_HEADS, row, start_row
from bench.forecast.scenarios import SCENARIOS, STARTS, Scenario
from bench.forecast.simulation import judged

PAGE = Path(__file__).parents[3].joinpath("docs/scheduling.md").read_text("utf-8")
KINDS = ["seeds of the choice", "fresh seeds"]
FIRST_SEEDS = [0, FIRST_FRESH_SEED]


def tables(heads: str) -> list[list[str]]:
    """Return the rows of each table with these column heads: first the table for default seeds, then for
    fresh seeds.
    """
    return [part.partition("\n\n")[0].splitlines() for part in PAGE.split(heads + "\n")[1:]]


ROWS, START_ROWS = tables(HEADS), tables(START_HEADS)


@pytest.mark.parametrize("table", [0, 1], ids=KINDS)
def test_every_scenario_has_its_row_and_nothing_else_has(table: int) -> None:
    names = [line.split("|")[1].strip() for line in ROWS[table]]
    assert names == [*(each.name for each in SCENARIOS), "all"]
    starts = [line.split("|")[1].strip() for line in START_ROWS[table]]
    assert starts == [each.name for each in STARTS]


def test_the_page_says_how_many_runs_were_made() -> None:
    assert f"each row has {SEEDS} seeds" in PAGE
    assert f"uses {SEEDS} seeds that nothing was fitted to" in PAGE


@pytest.mark.parametrize("table", [0, 1], ids=KINDS)
def test_forecasts_over_all_scenarios_are_as_good_as_they_should_be(table: int) -> None:
    cells = [int(cell.strip().rstrip("%")) for cell in ROWS[table][-1].split("|")[2:7]]
    error_after_a_tenth, within_p90 = cells[0], cells[4]
    assert error_after_a_tenth <= 15
    assert 85 <= within_p90 <= 95


@pytest.mark.parametrize("table", [0, 1], ids=KINDS)
def test_few_batches_that_fit_are_late_and_few_that_cannot_be_done_in_time_are(table: int) -> None:
    in_time = [[count(cell) for cell in line.split("|")[4:7]] for line in START_ROWS[table]]
    fits, _, cannot = (tuple(map(sum, zip(*column, strict=True))) for column in zip(*in_time, strict=True))
    assert fits[0] >= 0.9 * fits[1]
    assert cannot[0] <= 0.1 * cannot[1]


def count(cell: str) -> tuple[int, int]:
    part, _, total = cell.strip().partition(" of ")
    return int(part), int(total)


@pytest.mark.slow
@pytest.mark.parametrize("table", [0, 1], ids=KINDS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_what_the_page_says_is_what_the_simulation_finds(scenario: Scenario, table: int) -> None:
    seeds = range(FIRST_SEEDS[table], FIRST_SEEDS[table] + SEEDS)
    assert row(scenario.name, judged(scenario, seeds).forecasts) in ROWS[table]


@pytest.mark.slow
@pytest.mark.parametrize("table", [0, 1], ids=KINDS)
@pytest.mark.parametrize("scenario", STARTS, ids=lambda scenario: scenario.name)
def test_forecasts_at_the_start_on_the_page_are_those_of_the_simulation(
    scenario: Scenario, table: int
) -> None:
    seeds = range(FIRST_SEEDS[table], FIRST_SEEDS[table] + SEEDS)
    assert start_row(scenario.name, judged(scenario, seeds).starts) in START_ROWS[table]
