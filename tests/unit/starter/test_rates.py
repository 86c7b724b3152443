"""`batchwright rates`: shows, sets and removes rates, and rejects wrong input."""

import json
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.unit.starter.cli import Cli, served

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


@pytest.fixture
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def test_without_rates_the_command_prints_how_to_set_one(cli: Cli) -> None:
    shown = cli.run("rates")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "batchwright rates set MODEL RATE" in shown.stderr


def test_rates_are_set_shown_and_removed(cli: Cli) -> None:
    assert cli.run("rates", "set", "llama", "2.5").exit_code == 0
    changed = cli.run("rates", "set", "--all-models", "50")
    assert [line.split() for line in changed.stdout.splitlines()] == [
        ["model", "requests/s", "from"],
        ["all", "models", "50", "change"],
        ["llama", "2.5", "change"],
    ]
    assert "share 47.5 requests/s" in changed.stderr
    assert cli.run("rates").stdout == changed.stdout
    cli.run("rates", "clear", "--all-models")
    assert "llama" in cli.run("rates").stdout
    cleared = cli.run("rates", "clear", "llama")
    assert (cleared.stdout, cleared.stderr) == ("", "Cleared the rate of llama.\n")


def test_removing_an_unset_rate_reports_that_nothing_was_removed(cli: Cli) -> None:
    for arguments, what in (
        (("llama",), "The rate of llama"),
        (("--all-models",), "The rate over all models"),
    ):
        cleared = cli.run("rates", "clear", *arguments)
        assert cleared.exit_code == 0
        assert cleared.stderr == f"{what} was not changed at run time, so there is nothing to undo.\n"


def test_json_output_is_the_response_of_the_api(cli: Cli) -> None:
    answer = {"model": "llama", "requests_per_second": 20.0, "source": "change", "queue": "inference.llama"}
    whole = {"object": "list", "data": [answer], "shared_requests_per_second": None}
    assert json.loads(cli.run("rates", "set", "llama", "20", "--json").stdout) == whole
    assert json.loads(cli.run("rates", "--json").stdout) == whole
    assert json.loads(cli.run("rates", "clear", "llama", "--json").stdout)["data"] == []


def test_no_limit_is_shown_as_no_limit(cli: Cli) -> None:
    assert "no limit" in cli.run("rates", "set", "llama", "0").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "20"), "--all-models"),
        (("set", "llama", "--all-models", "20"), "--all-models"),
        (("set", "llama", "fast"), "'fast' is not a number"),
        (("set", "llama", "nan"), "'nan' is not a number"),
        (("set", "nobody", "20"), "There is no model nobody; `batchwright models` lists them."),
        (("set", "llama", "0.00001"), "expected 0, for no limit, or 0.001"),
        (("clear",), "--all-models"),
    ],
)
def test_wrong_usage_is_reported_in_one_sentence(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    refused = cli.run("rates", *arguments)
    assert refused.exit_code == 3
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


def test_every_option_is_documented_and_no_other(cli: Cli) -> None:
    commands = (("rates",), ("rates", "set"), ("rates", "clear"))
    shown = "".join(cli.run(*command, "--help").stdout for command in commands)
    page = (REFERENCE / "cli.md").read_text().split("\n## rates\n")[1].split("\n## ")[0]
    assert _options(page) == _options(shown)


def _options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - {"--help"}
