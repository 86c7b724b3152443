"""`batchwright dlq`: lists, retries and deletes dead letters."""

import json
import re
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.records import BatchOutcome
from batchwright.rules.ids import request_id
from batchwright.rules.results.dead_letters import DeadLetter
from tests.unit.starter.cli import LATER, Cli, run_now, served

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


@pytest.fixture
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def buried(cli: Cli, folder: Path) -> str:
    """Create a batch that has ended with one dead letter. Return the id of the dead letter."""
    row = cli.submitted(folder)
    dead_letter = DeadLetter(
        id=request_id(row.order.batch_id, 0),
        offset=0,
        custom_id="[a]",
        model="llama",
        attempts=5,
        failed_at=datetime(2026, 1, 1, tzinfo=UTC),
        code="request_timeout",
        message="too late",
    )
    outcome = BatchOutcome(
        status=BatchStatus.COMPLETED, completed=0, failed=1, usage=Usage(), dead_letters=[dead_letter]
    )
    run_now(cli.api.database.batch_ends.finish("default", row.order.batch_id, outcome, LATER))
    return dead_letter.id


def test_an_empty_dead_letter_list_is_reported(cli: Cli) -> None:
    shown = cli.run("dlq", "list")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "no dead letters" in shown.stderr
    assert "nothing to retry" in cli.run("dlq", "retry-all").stderr


def test_dead_letters_are_listed_with_their_errors(cli: Cli, tmp_path: Path) -> None:
    dead_letter = buried(cli, tmp_path)
    found = json.loads(cli.run("dlq", "list", "--json").stdout)["data"][0]
    assert (found["id"], found["error"]["message"]) == (dead_letter, "too late")
    shown = cli.run("dlq", "list", COLUMNS="200").stdout
    assert dead_letter in shown
    assert "[a]" in shown
    assert "request_timeout: too late" in shown
    others = cli.run("dlq", "list", "--of", "red")
    assert (others.stdout, others.stderr) == ("", "There are no dead letters of red.\n")


def test_a_dead_letter_is_retried_once_and_shown_with_its_batch(cli: Cli, tmp_path: Path) -> None:
    dead_letter = buried(cli, tmp_path)
    retried = cli.run("dlq", "retry", dead_letter, "--window", "1h")
    assert cli.run("dlq", "retry", dead_letter).stdout == retried.stdout
    assert cli.row(retried.stdout.strip()).order.completion_window == "1h"
    assert f"retried as {retried.stdout.strip()}" in cli.run("dlq", "list", COLUMNS="300").stdout
    assert cli.run("dlq", "retry-all").stdout == ""


def test_retry_all_retries_every_dead_letter_and_reports_the_impossible_ones(
    cli: Cli, tmp_path: Path
) -> None:
    buried(cli, tmp_path)
    gone = buried(cli, tmp_path)
    origin = json.loads(cli.run("dlq", "list", "--json").stdout)["data"]
    batch = next(one["batch_id"] for one in origin if one["id"] == gone)
    del cli.api.database.rows.files["default", cli.row(batch).order.input_file_id]
    shown = cli.run("dlq", "retry-all")
    assert shown.exit_code == 1
    assert len(shown.stdout.split()) == 1
    assert f"{batch}: Cannot retry batch" in shown.stderr.replace("\n", " ")


def test_a_deleted_dead_letter_is_not_listed(cli: Cli, tmp_path: Path) -> None:
    dead_letter = buried(cli, tmp_path)
    assert cli.run("dlq", "delete", dead_letter).exit_code == 0
    again = cli.run("dlq", "delete", dead_letter)
    assert again.exit_code == 3
    assert f"No dead letter found with id '{dead_letter}'" in again.stderr.replace("\n", " ")


def test_every_option_is_documented_and_no_other(cli: Cli) -> None:
    commands = ("list", "retry", "retry-all", "delete")
    shown = "".join(cli.run("dlq", command, "--help").stdout for command in commands)
    page = (REFERENCE / "cli.md").read_text().split("\n## dlq\n")[1].split("\n## ")[0]
    assert _options(page) == _options(shown)


def _options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - {"--help"}
