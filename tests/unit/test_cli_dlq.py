"""`batchwright dlq`: listed, retried, deleted."""

import json
import re
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batchwright.contracts.openai import BatchStatus, Usage
from batchwright.database.rows import Outcome
from batchwright.rules.dead_letters import DeadLetter
from batchwright.rules.ids import request_id
from tests.unit.cli import LATER, Cli, run_now, served

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.fixture
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def buried(cli: Cli, folder: Path) -> str:
    """The id of the one letter of a batch that has ended."""
    row = cli.submitted(folder)
    letter = DeadLetter(
        id=request_id(row.order.batch_id, 0),
        offset=0,
        custom_id="[a]",
        model="llama",
        attempts=5,
        failed_at=datetime(2026, 1, 1, tzinfo=UTC),
        code="request_timeout",
        message="too late",
    )
    outcome = Outcome(
        status=BatchStatus.COMPLETED, completed=0, failed=1, usage=Usage(), dead_letters=[letter]
    )
    run_now(cli.house.database.batches.finish("default", row.order.batch_id, outcome, LATER))
    return letter.id


def test_without_letters_it_says_so(cli: Cli) -> None:
    shown = cli.run("dlq", "list")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "no dead letters" in shown.stderr
    assert "nothing to retry" in cli.run("dlq", "retry-all").stderr


def test_letters_are_listed_with_what_went_wrong(cli: Cli, tmp_path: Path) -> None:
    letter = buried(cli, tmp_path)
    found = json.loads(cli.run("dlq", "list", "--json").stdout)["data"][0]
    assert (found["id"], found["error"]["message"]) == (letter, "too late")
    shown = cli.run("dlq", "list", COLUMNS="200").stdout
    assert letter in shown
    assert "[a]" in shown
    assert "request_timeout: too late" in shown
    others = cli.run("dlq", "list", "--of", "red")
    assert (others.stdout, others.stderr) == ("", "There are no dead letters of red.\n")


def test_a_letter_is_retried_once_and_named_with_its_batch(cli: Cli, tmp_path: Path) -> None:
    letter = buried(cli, tmp_path)
    made = cli.run("dlq", "retry", letter, "--window", "1h")
    assert cli.run("dlq", "retry", letter).stdout == made.stdout
    assert cli.row(made.stdout.strip()).order.completion_window == "1h"
    assert f"retried as {made.stdout.strip()}" in cli.run("dlq", "list", COLUMNS="300").stdout
    assert cli.run("dlq", "retry-all").stdout == ""


def test_all_are_retried_and_what_cannot_be_is_said(cli: Cli, tmp_path: Path) -> None:
    buried(cli, tmp_path)
    gone = buried(cli, tmp_path)
    origin = json.loads(cli.run("dlq", "list", "--json").stdout)["data"]
    batch = next(one["batch_id"] for one in origin if one["id"] == gone)
    del cli.house.database.rows.files["default", cli.row(batch).order.input_file_id]
    shown = cli.run("dlq", "retry-all")
    assert shown.exit_code == 1
    assert len(shown.stdout.split()) == 1
    assert f"{batch}: Cannot retry batch" in shown.stderr.replace("\n", " ")


def test_a_deleted_letter_is_gone(cli: Cli, tmp_path: Path) -> None:
    letter = buried(cli, tmp_path)
    assert cli.run("dlq", "delete", letter).exit_code == 0
    again = cli.run("dlq", "delete", letter)
    assert again.exit_code == 3
    assert f"No dead letter found with id '{letter}'" in again.stderr.replace("\n", " ")


def test_every_option_is_documented_and_no_other(cli: Cli) -> None:
    commands = ("list", "retry", "retry-all", "delete")
    shown = "".join(cli.run("dlq", command, "--help").stdout for command in commands)
    page = (REFERENCE / "cli.md").read_text().split("\n## dlq\n")[1].split("\n## ")[0]
    assert _options(page) == _options(shown)


def _options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - {"--help"}
