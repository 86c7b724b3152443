"""submit, status, watch, list, cancel, pause, resume: what they do, print and exit with."""

import json
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from batchwright.contracts.openai import BatchStatus, ValidationError
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.rows import ModelCount
from batchwright.database.waiting_base import Source
from tests.unit.cli import LATER, LINE, Cli, run_now, served

STATUSES = [
    (BatchStatus.COMPLETED, 0),
    (BatchStatus.FAILED, 1),
    (BatchStatus.EXPIRED, 1),
    (BatchStatus.CANCELLED, 1),
]
FAST = ("--interval", "0.05")


@pytest.fixture(scope="module")
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def test_submit_uploads_the_file_and_prints_the_id_alone(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path, "--window", "2h", "--metadata", "a=1", "--metadata", "b=x=y")
    assert row.order.completion_window == "2h"
    assert row.order.metadata == {"a": "1", "b": "x=y"}
    file = run_now(cli.house.database.files.get("default", row.order.input_file_id))
    assert file is not None
    assert file.filename == "input.jsonl"
    assert cli.house.storage.objects[file.storage_key] == LINE.encode()


def test_submit_sends_headers_with_the_creation(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path, "--header", "X-Team=rivers", "--header", "x-other=1")
    wrong = cli.run("submit", str(tmp_path / "input.jsonl"), "--header", "X-Team")
    assert row.order.policy.caller.headers == {"x-team": "rivers"}
    assert "--header 'X-Team' is not name=value." in wrong.stderr
    assert wrong.exit_code == 3


@pytest.mark.parametrize(
    "wrong", [("--window", "5x"), ("--endpoint", "/v1/nope"), ("--header", "X-Team=" + "x" * 300)]
)
def test_a_batch_that_is_refused_leaves_no_file_behind(
    cli: Cli, tmp_path: Path, wrong: tuple[str, str]
) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    before = set(cli.house.storage.objects), set(cli.house.database.rows.files)
    refused = cli.run("submit", str(path), *wrong)
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert (set(cli.house.storage.objects), set(cli.house.database.rows.files)) == before


def test_submit_as_json_prints_the_batch_as_the_api_answers_it(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    batch = json.loads(cli.run("submit", str(path), "--json").stdout)
    assert batch["object"] == "batch"
    assert batch["errors"] is None
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}


@pytest.mark.parametrize(("status", "code"), STATUSES)
def test_submit_and_wait_exits_as_the_batch_ends(
    cli: Cli, tmp_path: Path, status: BatchStatus, code: int
) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    with cli.ending(status):
        ended = cli.run("submit", str(path), "--wait", *FAST)
    assert ended.exit_code == code
    assert status.value in ended.stdout


@pytest.mark.parametrize(("status", "code"), STATUSES)
def test_status_exits_as_the_batch_stands(cli: Cli, tmp_path: Path, status: BatchStatus, code: int) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    assert cli.run("status", batch_id).exit_code == 2
    cli.end(batch_id, status)
    ended = cli.run("status", batch_id)
    assert ended.exit_code == code
    assert status.value in ended.stdout


def test_status_shows_models_and_why_they_wait(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    cli.begin(row, ModelCount(model="llama[7b]", lines=1_000, completed=2), ModelCount(model="qwen", lines=5))
    cli.waits(row, "qwen", "no worker polls [its queue]", Source.FLEET)
    cli.waits(row, "", "paused", Source.USER)
    shown = cli.run("status", row.order.batch_id, COLUMNS="80").stdout
    assert "in_progress, paused" in shown
    assert "llama[7b]: " in shown
    assert "of 1,000 lines" in shown
    assert "qwen: no worker polls [its queue]" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_status_counts_no_lines_before_they_are_known(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    shown = cli.run("status", row.order.batch_id).stdout
    assert "validating" in shown
    assert "lines" not in shown


def test_status_lists_the_first_errors_of_validation(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    errors = [ValidationError(code="invalid_url", message="Bad.", line=number) for number in range(1, 13)]
    batches = cli.house.database.batches
    run_now(batches.fail_validation("default", row.order.batch_id, errors=errors, total=12, at=LATER))
    ended = cli.run("status", row.order.batch_id)
    assert ended.exit_code == 1
    assert "line 10: Bad. (invalid_url)" in ended.stdout
    assert "line 11" not in ended.stdout
    assert "and 2 more errors" in ended.stdout


def test_watch_stays_until_the_end(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id)
    ended = cli.run("watch", batch_id, *FAST)
    assert (ended.exit_code, "completed" in ended.stdout) == (0, True)


def test_watch_outlasts_an_api_that_is_away(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    rows = cli.house.database.rows
    failures: list[Exception | None] = [DatabaseUnavailable("refused"), DatabaseUnavailable("refused"), None]

    def between_looks(seconds: float) -> None:
        rows.failing = None
        if len(failures) == 1:
            cli.end(batch_id)
        rows.failing = failures.pop(0)

    monkeypatch.setattr("starter.commands.watch.time.sleep", between_looks)
    assert cli.run("watch", batch_id).exit_code == 0
    assert failures == []


def test_watch_without_a_terminal_tells_each_change_in_a_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    looks: list[Callable[[], None]] = [
        lambda: None,
        lambda: cli.begin(row, ModelCount(model="llama", lines=1)),
        lambda: None,
        lambda: cli.end(row.order.batch_id),
    ]

    def between_looks(seconds: float) -> None:
        looks.pop(0)()

    monkeypatch.setattr("starter.commands.watch.time.sleep", between_looks)
    told = cli.run("watch", row.order.batch_id).stderr.splitlines()
    assert [line.split(";")[0] for line in told] == ["0 of 0 lines, validating", "0 of 1 lines, in_progress"]


def test_watch_as_json_prints_one_object(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id)
    assert json.loads(cli.run("watch", batch_id, "--json").stdout)["status"] == "completed"


def test_list_pages_from_newest_to_oldest(cli: Cli, tmp_path: Path) -> None:
    tenant = {"BATCHWRIGHT_TENANT": "lists"}
    assert "no batches yet" in cli.run("list", **tenant).stderr
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    first, second = [cli.run("submit", str(path), **tenant).stdout.strip() for _ in range(2)]
    page = cli.run("list", "--limit", "1", COLUMNS="80", **tenant)
    assert second in page.stdout
    assert first not in page.stdout
    assert f"--after {second}" in page.stderr
    rest = json.loads(cli.run("list", "--after", second, "--json", **tenant).stdout)
    assert [batch["id"] for batch in rest["data"]] == [first]
    assert max(len(line) for line in page.stdout.splitlines()) <= 80


def test_the_option_tenant_wins_over_the_environment(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    foreign = cli.run("status", batch_id, BATCHWRIGHT_TENANT="other")
    assert (foreign.exit_code, "No batch found" in foreign.stderr) == (3, True)
    assert cli.run("status", batch_id, "--tenant", "default", BATCHWRIGHT_TENANT="other").exit_code == 2


def test_cancel_shows_cancelling(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    ended = cli.run("cancel", batch_id)
    assert (ended.exit_code, "cancelling" in ended.stdout) == (0, True)
    assert (batch_id, "cancel") in cli.house.temporal.signals


def test_cancel_and_wait_is_content_with_a_cancelled_batch(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, BatchStatus.CANCELLED)
    assert cli.run("cancel", batch_id, "--wait", *FAST).exit_code == 0


def test_a_completed_batch_cannot_be_cancelled(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id)
    refused = cli.run("cancel", batch_id)
    assert refused.exit_code == 3
    assert refused.stderr.strip() == "Cannot cancel a batch with status 'completed'."


def test_pause_and_resume_show_how_the_batch_stands_now(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    assert "validating, paused" in cli.run("pause", batch_id).stdout
    assert "paused" not in cli.run("resume", batch_id).stdout


@pytest.mark.parametrize(("command", "paused"), [("pause", True), ("resume", False)])
def test_pause_and_resume_reach_the_workflow(cli: Cli, tmp_path: Path, command: str, paused: bool) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    told = cli.run(command, batch_id, "--json")
    assert json.loads(told.stdout)["x_batchwright"]["paused"] is paused
    assert (batch_id, command) in cli.house.temporal.signals
