"""The table of forecasts in docs/scheduling.md is what `python -m bench.forecast` prints."""

from pathlib import Path

import pytest

from bench.forecast.__main__ import HEADS, SEEDS, row
from bench.forecast.scenarios import SCENARIOS, Scenario
from bench.forecast.simulation import judged_forecasts

PAGE = Path(__file__).parents[3].joinpath("docs/scheduling.md").read_text("utf-8")
ROWS = PAGE.partition(HEADS + "\n")[2].partition("\n\n")[0].splitlines()


def test_every_scenario_has_its_row_and_nothing_else_has() -> None:
    assert [line.split("|")[1].strip() for line in ROWS] == [*(each.name for each in SCENARIOS), "all"]


def test_the_page_says_how_many_runs_were_made() -> None:
    assert f"each row has {SEEDS} seeds" in PAGE


def test_forecasts_over_all_scenarios_are_as_good_as_they_should_be() -> None:
    cells = [int(cell.strip().rstrip("%")) for cell in ROWS[-1].split("|")[2:7]]
    error_after_a_tenth, within_p90 = cells[0], cells[4]
    assert error_after_a_tenth <= 15
    assert 85 <= within_p90 <= 95


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_what_the_page_says_is_what_the_simulation_finds(scenario: Scenario) -> None:
    assert row(scenario.name, judged_forecasts(scenario, range(SEEDS))) in ROWS
