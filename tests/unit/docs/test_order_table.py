"""The tables in docs/scheduling.md about the order of batches are equal to the output of `python -m
bench.order`.
"""

import re
from pathlib import Path

import pytest

from bench.order.__main__ import SEEDS, heads, row
from bench.order.rules import RULES
from bench.order.scenarios import SCENARIOS, Scenario
from bench.order.simulation import runs

PAGE = Path(__file__).parents[3].joinpath("docs/scheduling.md").read_text("utf-8")
OURS = "Batchwright"


def written(scenario: Scenario) -> list[str]:
    """Return the rows of a scenario's table on the page."""
    title = re.escape(f"**{scenario.name}**\n\n{heads(scenario)}\n")
    found = re.search(rf"{title}((?:\|.*\n)+)", PAGE)
    assert found is not None
    return found[1].splitlines()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_rule_has_its_row_in_every_scenario(scenario: Scenario) -> None:
    assert [line.split("|")[1].strip() for line in written(scenario)] == list(RULES)


def test_the_page_says_how_many_runs_were_made() -> None:
    assert f"prints them, from {SEEDS} seeds each. The columns" in PAGE


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_no_rule_meets_more_windows_than_ours(scenario: Scenario) -> None:
    column = heads(scenario).split("|").index(" in time ")
    in_time = [float(line.split("|")[column].strip(" %")) for line in written(scenario)]
    assert in_time[-1] == max(in_time)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_what_our_rule_does_is_what_the_page_says(scenario: Scenario) -> None:
    assert row(OURS, scenario, runs(scenario, RULES[OURS], range(SEEDS))) in written(scenario)
