"""The table of limits in docs/scheduling.md is equal to the output of `python -m bench.limits`."""

import re
from pathlib import Path

import pytest

from bench.limits.__main__ import HEADS, SEEDS, limits_of, row
from bench.limits.scenarios import SCENARIOS
from bench.limits.simulation import Scenario, runs

PAGE = Path(__file__).parents[3].joinpath("docs/scheduling.md").read_text("utf-8")
NAMES = [(scenario, name) for scenario in SCENARIOS for name in limits_of(scenario)]
# Limits of ours change with our code, all others are as simple as they were when the table was made.
OURS = [(scenario, name) for scenario, name in NAMES if name.startswith("adaptive")]


def written() -> dict[str, list[str]]:
    """Return the rows of each table on the page, by its title."""
    found = re.findall(rf"\*\*([^*\n]+)\*\*\n\n{re.escape(HEADS)}\n((?:\|.*\n)+)", PAGE)
    return {title: rows.splitlines() for title, rows in found}


def test_every_limit_has_its_row_in_every_trouble_and_nothing_else_has() -> None:
    names = {title: [line.split("|")[1].strip() for line in rows] for title, rows in written().items()}
    assert names == {scenario.name: list(limits_of(scenario)) for scenario in SCENARIOS}


def test_the_page_has_the_number_of_runs() -> None:
    assert f"the mean of {SEEDS} seeds" in PAGE


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "name"), OURS, ids=lambda value: getattr(value, "name", value))
def test_the_page_has_the_results_of_the_simulation(scenario: Scenario, name: str) -> None:
    assert row(name, runs(scenario, limits_of(scenario)[name], range(SEEDS))) in written()[scenario.name]
