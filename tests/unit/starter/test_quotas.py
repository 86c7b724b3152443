"""`batchwright quotas`: shows, sets and removes quotas, and rejects wrong input."""

import json
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from batchwright.starter import output
from tests.fakes.api import LINE
from tests.unit.starter.cli import Cli, served

NO_WEIGHTS = ("0", "-1", "nan", "inf", "1e999", "heavy", "")
NO_CAPS = ("0", "-1", "1.5", "nan", "many", "")
REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


@pytest.fixture
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def rows(text: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


def test_without_quotas_the_command_prints_how_to_set_one(cli: Cli) -> None:
    shown = cli.run("quotas")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "batchwright quotas set TENANT" in shown.stderr


def test_quotas_are_set_shown_and_removed(cli: Cli) -> None:
    assert (
        cli.run("quotas", "set", "blue", "--live-batches", "5", "--model", "b", "--model", "a").exit_code == 0
    )
    changed = cli.run(
        "quotas", "set", "blue", "--enqueued-lines", "0", "--tokens-per-day", "1000", COLUMNS="200"
    )
    assert rows(changed.stdout) == [
        ["tenant", "weight", "in flight", "models", "quotas"],
        ["blue", "default", "no cap", "a, b", "live_batches 5, enqueued_lines no limit, tokens_per_day 1000"],
    ]
    assert cli.run("quotas", COLUMNS="200").stdout == changed.stdout
    back = cli.run("quotas", "set", "blue", "--live-batches", "default", "--all-models", COLUMNS="200")
    assert rows(back.stdout)[1][3:] == ["all", "enqueued_lines no limit, tokens_per_day 1000"]
    assert rows(cli.run("quotas", "set", "blue", "--no-models").stdout)[1][3] == "none"
    costs = cli.run("quotas", "set", "blue", "--cost-per-day", "2.50", COLUMNS="200")
    assert rows(costs.stdout)[1][4].endswith("tokens_per_day 1000, cost_per_day 2.5")
    free = cli.run("quotas", "set", "blue", "--cost-per-day", "0", COLUMNS="200")
    assert rows(free.stdout)[1][4].endswith("tokens_per_day 1000, cost_per_day no limit")
    wrong = cli.run("quotas", "set", "blue", "--cost-per-day=-1")
    assert (wrong.exit_code, "at most 6 decimal places, but it is '-1'" in wrong.stderr) == (3, True)
    cleared = cli.run("quotas", "clear", "blue")
    assert (cleared.stdout, "nothing was taken back" in cleared.stderr) == ("", False)
    again = cli.run("quotas", "clear", "blue")
    assert again.exit_code == 0
    assert "blue had no quotas of its own, so there is nothing to remove." in again.stderr


def test_show_prints_limits_and_usage(cli: Cli, tmp_path: Path) -> None:
    cli.run("quotas", "set", "default", "--live-batches", "5", "--model", "llama")
    cli.submitted(tmp_path)
    shown = cli.run("quotas", "show", "default")
    assert rows(shown.stdout)[:3] == [
        ["quota", "limit", "used", "left"],
        ["live_batches", "5", "1", "4"],
        ["stored_bytes", "none", "96"],
    ]
    assert shown.stderr == "Weight: 1. Requests in flight: no cap. Models: llama.\n"


def test_a_weight_and_a_cap_are_set_shown_and_taken_back(cli: Cli) -> None:
    changed = cli.run("quotas", "set", "blue", "--weight", "2.5", "--max-in-flight", "16")
    assert rows(changed.stdout)[1] == ["blue", "2.5", "16", "all", "default"]
    shown = cli.run("quotas", "show", "blue").stderr
    assert shown == "Weight: 2.5. Requests in flight: at most 16. Models: all.\n"
    back = cli.run("quotas", "set", "blue", "--weight", "default", "--max-in-flight", "default")
    assert rows(back.stdout)[1] == ["blue", "default", "no cap", "all", "default"]


def test_rates_are_set_shown_and_taken_back(cli: Cli) -> None:
    given = ("--backend-requests-per-minute", "600", "--backend-tokens-per-minute", "90000")
    changed = cli.run("quotas", "set", "blue", *given)
    assert "backend_requests_per_minute 600, backend_tokens_per_minute" in " ".join(changed.stdout.split())
    shown = cli.run("quotas", "show", "blue").stderr
    assert "Requests to backends per minute: 600. Tokens to backends per minute: 90000." in shown
    back = cli.run("quotas", "set", "blue", given[0], "default", given[2], "default")
    assert rows(back.stdout)[1] == ["blue", "default", "no cap", "all", "default"]
    for bad in ("0", "-1", "NaN", "inf", "1.5", "9" * 5000):
        assert cli.run("quotas", "set", "blue", given[0], bad).exit_code != 0


def test_the_highest_priority_is_set_shown_and_taken_back(cli: Cli, tmp_path: Path) -> None:
    changed = cli.run("quotas", "set", "default", "--max-priority", "4")
    assert rows(changed.stdout)[1] == ["default", "default", "no cap", "all", "max_priority 4"]
    assert "Highest priority: 4." in cli.run("quotas", "show", "default").stderr
    file = tmp_path / "input.jsonl"
    file.write_bytes(LINE)
    refused = cli.run("submit", str(file), "--priority", "5")
    assert (refused.exit_code, "the highest priority that you may use" in refused.stderr) == (3, True)
    created = cli.run("submit", str(file), "--priority", "4", "--json")
    assert json.loads(created.stdout)["x_batchwright"]["priority"] == 4
    back = cli.run("quotas", "set", "default", "--max-priority", "default")
    assert rows(back.stdout)[1] == ["default", "default", "no cap", "all", "default"]


def test_whether_batches_wait_for_a_quota_is_set_shown_and_taken_back(cli: Cli) -> None:
    changed = cli.run("quotas", "set", "blue", "--over-quota", "wait")
    assert rows(changed.stdout)[1] == ["blue", "default", "no cap", "all", "over_quota wait"]
    shown = cli.run("quotas", "show", "blue").stderr
    assert "Batches over the quota of enqueued lines or tokens wait." in shown
    wrong = cli.run("quotas", "set", "blue", "--over-quota", "queue")
    assert (wrong.exit_code, wrong.stderr) == (
        3,
        "'queue' is not `fail` or `wait`; `default`: the batch fails.\n",
    )
    back = cli.run("quotas", "set", "blue", "--over-quota", "default")
    assert rows(back.stdout)[1] == ["blue", "default", "no cap", "all", "default"]


def test_whether_batches_that_cannot_be_done_in_time_are_refused_is_set_shown_and_taken_back(
    cli: Cli,
) -> None:
    changed = cli.run("quotas", "set", "blue", "--window-too-short", "refuse")
    assert rows(changed.stdout)[1] == ["blue", "default", "no cap", "all", "window_too_short refuse"]
    shown = cli.run("quotas", "show", "blue").stderr
    assert "Batches that cannot be done within their windows are refused." in shown
    wrong = cli.run("quotas", "set", "blue", "--window-too-short", "maybe")
    assert (wrong.exit_code, wrong.stderr) == (
        3,
        "'maybe' is not `accept` or `refuse`; `default`: the batch is accepted.\n",
    )
    back = cli.run("quotas", "set", "blue", "--window-too-short", "default")
    assert rows(back.stdout)[1] == ["blue", "default", "no cap", "all", "default"]


@pytest.mark.parametrize("option", ["--max-in-flight", "--live-batches"])
def test_a_number_with_thousands_of_digits_is_refused(cli: Cli, option: str) -> None:
    refused = cli.run("quotas", "set", "blue", option, "9" * 5000)
    assert refused.exit_code == 3
    assert refused.stderr.endswith("A number of 5000 digits is too large: use at most 9007199254740991.\n")


def test_the_table_fits_into_a_terminal_of_80_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_UNLIMITED_WIDTH", 80)
    options = "live-batches stored-bytes enqueued-lines enqueued-tokens requests-per-minute tokens-per-day"
    limits = [part for name in options.split() for part in (f"--{name}", "1000000000")]
    own = (
        "--weight",
        "0.125",
        "--max-in-flight",
        "10000",
        "--model",
        "llama-3.1-8b",
        "--model",
        "qwen2.5-7b",
    )
    shown = cli.run("quotas", "set", "blue-europe", *limits, *own).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "blue-europe" in shown
    assert all(name.replace("-", "_") in shown for name in options.split())


def test_for_a_tenant_without_quotas_it_says_that_the_settings_apply(cli: Cli) -> None:
    shown = cli.run("quotas", "show", "typo")
    assert shown.exit_code == 0
    assert shown.stderr == "typo has no quotas of its own: these come from the settings.\n" + (
        "Weight: 1. Requests in flight: no cap. Models: all.\n"
    )


def test_json_output_is_the_response_of_the_api(cli: Cli) -> None:
    answer = json.loads(cli.run("quotas", "set", "blue", "--stored-bytes", "7", "--json").stdout)
    assert [(row["tenant"], row["stored_bytes"]) for row in answer["data"]] == [("blue", 7)]
    assert json.loads(cli.run("quotas", "--json").stdout) == answer
    limits = json.loads(cli.run("quotas", "show", "blue", "--json").stdout)["data"]
    assert {"quota": "stored_bytes", "limit": 7, "used": 0, "left": 7} in limits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "blue"), "--live-batches 10"),
        (("set", "blue", "--live-batches", "many"), "'many' is not a whole number"),
        (("set", "blue", "--live-batches=-1"), "'-1' is not a whole number"),
        *((("set", "blue", f"--weight={bad}"), f"'{bad}' is not a positive number") for bad in NO_WEIGHTS),
        (("set", "blue", "--weight", "1001"), "from 0.001 to 1000"),
        *((("set", "blue", f"--max-in-flight={bad}"), f"'{bad}' is not a positive whole") for bad in NO_CAPS),
        (("set", "blue", "--max-priority", "6"), "'6' is not a priority from 1 to 5"),
        (("set", "blue", "--model", "a", "--all-models"), "one of --model"),
        (("set", "a/b", "--live-batches", "1"), "'tenant'"),
        (("show", "a/b"), "Invalid URL"),
        (("clear", "a b"), "'tenant'"),
    ],
)
def test_wrong_usage_is_reported_in_one_sentence(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    refused = cli.run("quotas", *arguments)
    assert refused.exit_code == 3
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


def test_every_option_is_documented_and_no_other(cli: Cli) -> None:
    commands = (("quotas",), ("quotas", "show"), ("quotas", "set"), ("quotas", "clear"))
    shown = "".join(cli.run(*command, "--help").stdout for command in commands)
    page = (REFERENCE / "cli.md").read_text().split("\n## quotas\n")[1].split("\n## ")[0]
    assert _options(page) == _options(shown)


def _options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - {"--help"}
