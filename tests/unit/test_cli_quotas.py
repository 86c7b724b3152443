"""`batchwright quotas`: seen, set, taken back, refused."""

import json
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.unit.cli import Cli, served

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.fixture
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def rows(text: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


def test_without_any_it_says_how_to_give_some(cli: Cli) -> None:
    shown = cli.run("quotas")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "batchwright quotas set TENANT" in shown.stderr


def test_quotas_are_set_shown_and_taken_back(cli: Cli) -> None:
    assert (
        cli.run("quotas", "set", "blue", "--live-batches", "5", "--model", "b", "--model", "a").exit_code == 0
    )
    changed = cli.run("quotas", "set", "blue", "--enqueued-lines", "0", "--tokens-per-day", "1000")
    assert rows(changed.stdout) == [
        ["tenant", "models", "batches", "bytes", "lines", "tokens", "requests/min", "tokens/day"],
        ["blue", "a, b", "5", "default", "no limit", "default", "default", "1000"],
    ]
    assert cli.run("quotas").stdout == changed.stdout
    back = cli.run("quotas", "set", "blue", "--live-batches", "default", "--all-models")
    assert rows(back.stdout)[1] == [
        "blue",
        "all",
        "default",
        "default",
        "no limit",
        "default",
        "default",
        "1000",
    ]
    assert rows(cli.run("quotas", "set", "blue", "--no-models").stdout)[1][1] == "none"
    cleared = cli.run("quotas", "clear", "blue")
    assert (cleared.stdout, "nothing was taken back" in cleared.stderr) == ("", False)
    again = cli.run("quotas", "clear", "blue")
    assert again.exit_code == 0
    assert "blue had no quotas of its own: nothing was taken back." in again.stderr


def test_show_tells_what_holds_and_what_is_taken(cli: Cli, tmp_path: Path) -> None:
    cli.run("quotas", "set", "default", "--live-batches", "5", "--model", "llama")
    cli.submitted(tmp_path)
    shown = cli.run("quotas", "show", "default")
    assert rows(shown.stdout)[:3] == [
        ["quota", "limit", "used", "left"],
        ["live_batches", "5", "1", "4"],
        ["stored_bytes", "none", "96"],
    ]
    assert shown.stderr == "Models: llama.\n"


def test_of_a_tenant_without_its_own_it_says_that_the_settings_hold(cli: Cli) -> None:
    shown = cli.run("quotas", "show", "typo")
    assert shown.exit_code == 0
    assert shown.stderr == "typo has no quotas of its own: these are the settings'.\nModels: all.\n"


def test_json_is_what_the_api_answers(cli: Cli) -> None:
    answer = json.loads(cli.run("quotas", "set", "blue", "--stored-bytes", "7", "--json").stdout)
    assert [(row["tenant"], row["stored_bytes"]) for row in answer["data"]] == [("blue", 7)]
    assert json.loads(cli.run("quotas", "--json").stdout) == answer
    limits = json.loads(cli.run("quotas", "show", "blue", "--json").stdout)["data"]
    assert {"quota": "stored_bytes", "limit": 7, "used": 0, "left": 7} in limits


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("set", "blue"), "--live-batches 10"),
        (("set", "blue", "--live-batches", "many"), "'many' is no whole number"),
        (("set", "blue", "--live-batches=-1"), "'-1' is no whole number"),
        (("set", "blue", "--model", "a", "--all-models"), "one of --model"),
        (("set", "a/b", "--live-batches", "1"), "'tenant'"),
        (("show", "a/b"), "Invalid URL"),
        (("clear", "a b"), "'tenant'"),
    ],
)
def test_wrong_use_is_one_sentence(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    refused = cli.run("quotas", *arguments)
    assert refused.exit_code == 3
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_every_option_is_documented_and_no_other(cli: Cli) -> None:
    commands = (("quotas",), ("quotas", "show"), ("quotas", "set"), ("quotas", "clear"))
    shown = "".join(cli.run(*command, "--help").stdout for command in commands)
    page = (REFERENCE / "cli.md").read_text().split("\n## quotas\n")[1].split("\n## ")[0]
    assert _options(page) == _options(shown)


def _options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - {"--help"}
