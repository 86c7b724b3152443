"""Help and errors of commands: wrong use, wrong settings, and servers that do not answer."""

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from batchwright.database.errors import DatabaseUnavailable
from batchwright.settings import Settings
from batchwright.starter.__main__ import COMMANDS
from batchwright.starter.diagnostics.connections import run_or_stop
from batchwright.starter.diagnostics.findings import DiagnosticReport, problem
from tests.unit.starter.cli import LINE, UNKNOWN, Cli, served

UNANSWERED = (
    "PostgreSQL does not answer. "
    "This command uses the database directly, at the address in BATCHWRIGHT_DATABASE_URL."
)


@pytest.fixture(scope="module")
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["status", UNKNOWN],
        ["status", "../files"],
        ["status", ""],
        ["explode"],
        ["list", "--limit", "0"],
        ["list", "--after", "nobody"],
        ["submit", "missing.jsonl"],
        ["submit", "missing.jsonl", "--metadata", "word"],
        ["validate", "missing.jsonl"],
        ["validate", "missing.jsonl", "--endpoint", "/v1/nothing"],
        ["list", "--url", "ftp://here"],
        ["list", "--url", "http://"],
        ["list", "--url", "http://here:port"],
    ],
    ids=" ".join,
)
def test_wrong_use_exits_with_3_and_without_a_traceback(cli: Cli, arguments: list[str]) -> None:
    ended = cli.run(*arguments)
    assert ended.exit_code == 3
    assert ended.stderr
    assert "Traceback" not in ended.output


@pytest.mark.parametrize("typed", ["", " ", "../files", "batch_1 batch_2"])
def test_an_invalid_id_is_refused_before_any_request(cli: Cli, typed: str) -> None:
    ended = cli.run("status", typed, BATCHWRIGHT_URL="http://127.0.0.1:1")
    assert ended.exit_code == 3
    assert "`batchwright list` shows all ids" in ended.stderr


def test_the_version_is_printed(cli: Cli) -> None:
    ended = cli.run("--version")
    assert (ended.exit_code, ended.stdout) == (0, f"batchwright {version('batchwright')}\n")


def test_a_stack_running_in_this_folder_is_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".batchwright").mkdir()
    (tmp_path / ".batchwright" / "dev.env").touch()
    monkeypatch.delenv("BATCHWRIGHT_DATABASE_URL", raising=False)

    with pytest.raises(typer.Exit):
        run_or_stop(_unanswered())
    assert capsys.readouterr().err == (
        f"{UNANSWERED} `. .batchwright/dev.env` sets the addresses of the `batchwright dev` stack here.\n"
    )


def test_a_stack_running_in_another_folder_is_suggested_if_no_database_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATCHWRIGHT_DATABASE_URL", raising=False)
    with pytest.raises(typer.Exit):
        run_or_stop(_unanswered())
    assert capsys.readouterr().err == (
        f"{UNANSWERED} If you use `batchwright dev`, run `. .batchwright/dev.env` in its directory: "
        "it sets the addresses.\n"
    )


def test_a_configured_database_that_does_not_answer_leads_to_no_suggestion_of_a_stack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(typer.Exit):
        run_or_stop(_unanswered())
    assert capsys.readouterr().err == f"{UNANSWERED}\n"


async def _unanswered() -> None:
    raise DatabaseUnavailable("PostgreSQL does not answer.")


def test_the_doctor_suggests_a_stack_running_in_this_folder(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".batchwright").mkdir()
    (tmp_path / ".batchwright" / "dev.env").touch()
    monkeypatch.delenv("BATCHWRIGHT_DATABASE_URL", raising=False)

    async def unavailable(chosen: Settings) -> DiagnosticReport:
        return DiagnosticReport(findings=[problem("database", "PostgreSQL does not answer.")])

    monkeypatch.setattr("batchwright.starter.commands.operations.doctor.examine", unavailable)
    ended = cli.run("doctor")
    assert (ended.exit_code, ended.stderr.split(" sets ")[0]) == (1, "`. .batchwright/dev.env`")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("schedules", "pause"), "The schedule id is empty: `batchwright schedules list` shows all ids."),
        (("webhooks", "show"), "The webhook id is empty: `batchwright webhooks list` shows all ids."),
        (("dlq", "delete"), "The dead letter id is empty: `batchwright dlq list` shows all ids."),
    ],
)
def test_an_empty_variable_instead_of_an_id_is_reported(
    cli: Cli, command: tuple[str, ...], message: str
) -> None:
    ended = cli.run(*command, "")
    assert (ended.exit_code, ended.stderr) == (3, f"{message}\n")


@pytest.mark.parametrize("group", [(), ("admin",), ("admin", "batches"), ("admin", "audit-log"), ("dlq",)])
def test_no_summary_of_a_command_is_cut(cli: Cli, group: tuple[str, ...]) -> None:
    shown = cli.run(*group, "--help", COLUMNS="80").stdout
    commands = shown.split("Commands:\n")[1].splitlines()
    assert [line for line in commands if not line.endswith(".")] == []


def test_a_wrong_window_is_reported_with_the_message_of_the_api(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    ended = cli.run("submit", str(path), "--window", "soon")
    assert ended.exit_code == 3
    assert "soon" in ended.stderr


def test_an_unreachable_api_is_reported(cli: Cli) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        ended = cli.run("list", BATCHWRIGHT_URL=url)
    assert ended.exit_code == 3
    assert (
        ended.stderr
        == f"No server answers at {url}: start `batchwright dev`, or set BATCHWRIGHT_URL or --url.\n"
    )


def test_a_wrong_setting_is_named(cli: Cli) -> None:
    ended = cli.run("list", BATCHWRIGHT_URL="nowhere")
    assert ended.exit_code == 3
    assert "BATCHWRIGHT_URL" in ended.stderr


def test_an_option_replaces_a_wrong_setting(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    submitted = cli.run("submit", str(path), "--url", cli.url, BATCHWRIGHT_URL="nowhere")
    assert submitted.exit_code == 0, submitted.stderr
    followed = cli.run("results", UNKNOWN, "--follow", "--url", cli.url, BATCHWRIGHT_URL="nowhere")
    assert "BATCHWRIGHT_URL" not in followed.stderr


def test_an_unavailable_database_is_reported_by_the_api(cli: Cli) -> None:
    cli.api.database.rows.failing = DatabaseUnavailable("refused")
    try:
        ended = cli.run("list")
    finally:
        cli.api.database.rows.failing = None
    assert ended.exit_code == 3
    assert ended.stderr.strip()
    assert "Traceback" not in ended.output


def test_a_server_that_is_not_batchwright_is_detected(cli: Cli) -> None:
    ended = cli.run("status", UNKNOWN, BATCHWRIGHT_URL=f"{cli.url}/docs?")
    assert (ended.exit_code, "is not Batchwright" in ended.stderr) == (3, True)


@pytest.mark.parametrize("program", ["simulator", "worker", "api"])
def test_a_process_gets_its_own_options(cli: Cli, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)  # which the command replaces
    monkeypatch.delitem(sys.modules, f"batchwright.{program}.__main__", raising=False)  # of another test
    ended = cli.run(program, "--help")
    assert ended.exit_code == 0
    assert "sage: " in ended.stdout


def test_help_lists_every_command_at_80_columns(cli: Cli) -> None:
    shown = cli.run("--help").stdout
    commands = (
        "submit status watch list cancel pause resume results validate dev demo worker api simulator migrate"
    )
    for command in commands.split():
        assert f"  {command} " in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_the_help_shows_the_whole_summary_of_each_command_on_eighty_columns() -> None:
    command = [sys.executable, "-m", "batchwright.starter", "--help"]  # a runner of tests has another width
    environment = {**os.environ, "COLUMNS": "80"}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert [each.name for each in COMMANDS if not each.help or each.help not in shown] == []
