"""The tables in docs/scheduling.md about shares of tenants are equal to the output of `python -m
bench.shares`.
"""

import re
from pathlib import Path

import pytest

from bench.shares.__main__ import HEADS, SEEDS, row
from bench.shares.rules import RULES
from bench.shares.scenarios import SCENARIOS, Scenario
from bench.shares.simulation import runs

PAGE = Path(__file__).parents[3].joinpath("docs/scheduling.md").read_text("utf-8")
OURS = "by time in flight"


def written() -> dict[str, list[str]]:
    """Return the rows of each table on the page, by its title."""
    found = re.findall(rf"\*\*([^*\n]+)\*\*\n\n{re.escape(HEADS)}\n((?:\|.*\n)+)", PAGE)
    return {title: rows.splitlines() for title, rows in found}


def test_every_rule_has_its_row_in_every_scenario_and_nothing_else_has() -> None:
    names = {title: [line.split("|")[1].strip() for line in rows] for title, rows in written().items()}
    assert names == {scenario.name: list(RULES) for scenario in SCENARIOS}


def test_the_page_says_how_many_runs_were_made() -> None:
    assert f"from {SEEDS} seeds each" in PAGE


def test_our_rule_is_even_in_every_minute_of_every_scenario() -> None:
    least = {title: float(rows[-1].split("|")[3]) for title, rows in written().items()}
    assert min(least.values()) >= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_what_our_rule_does_is_what_the_page_says(scenario: Scenario) -> None:
    assert row(OURS, runs(scenario, RULES[OURS], range(SEEDS))) in written()[scenario.name]
