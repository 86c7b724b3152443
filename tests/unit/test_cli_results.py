"""results, validate, and how commands say that something is wrong."""

import gzip
import json
import os
import socket
import sys
import threading
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from batchwright.contracts.openai import BatchStatus
from batchwright.database.errors import DatabaseUnavailable
from starter.operate.asking import answered
from tests.unit.cli import LINE, Cli, served

UNKNOWN = "batch_" + "0" * 32


@pytest.fixture(scope="module")
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def test_results_are_printed_byte_for_byte(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, output=b'{"n": 1e400, "s": "\xc3\xa9"}\n', error=b"{}\n")
    assert cli.run("results", batch_id).stdout_bytes == b'{"n": 1e400, "s": "\xc3\xa9"}\n'
    assert cli.run("results", batch_id, "--errors").stdout_bytes == b"{}\n"


def test_results_go_to_a_file_in_place_of_what_it_had(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, BatchStatus.EXPIRED, output=b"{}\n")
    target = tmp_path / "output.jsonl"
    target.write_bytes(b"of an earlier run, and longer\n")
    ended = cli.run("results", batch_id, "-o", str(target))
    assert (ended.exit_code, ended.stdout, target.read_bytes()) == (0, "", b"{}\n")
    elsewhere = cli.run("results", batch_id, "-o", str(tmp_path / "missing" / "file"))
    assert (elsewhere.exit_code, "cannot be written" in elsewhere.stderr) == (3, True)


def test_results_of_a_live_batch_are_not_there_yet(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    early = cli.run("results", batch_id)
    assert (early.exit_code, f"batchwright watch {batch_id}" in early.stderr) == (2, True)


def test_results_without_a_success_point_to_the_errors(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, error=b"{}\n")
    ended = cli.run("results", batch_id)
    assert (ended.exit_code, "results --errors" in ended.stderr) == (1, True)


def test_no_failed_lines_are_good_news(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, output=b"{}\n")
    ended = cli.run("results", batch_id, "--errors")
    assert (ended.exit_code, "No line" in ended.stderr) == (0, True)


def test_a_good_file_is_valid(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    ended = cli.run("validate", str(path))
    assert ended.exit_code == 0
    assert ended.stdout == f"{path}: 1 line, good (llama 1)\n"


def test_every_bad_line_of_a_file_is_listed(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE + "{\n" + LINE + '{"custom_id": "b", "body": 1}\n')
    ended = cli.run("validate", str(path))
    assert ended.exit_code == 1
    assert [line.split(":")[0] for line in ended.stdout.splitlines()[:3]] == ["line 2", "line 3", "line 4"]
    assert ended.stdout.splitlines()[-1].endswith("4 lines, 3 errors (llama 1)")


def test_the_strict_profile_refuses_more(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    ended = cli.run("validate", str(path), "--json", BATCHWRIGHT_PROFILE="strict")
    report = json.loads(ended.stdout)
    assert (ended.exit_code, report["valid"], report["lines"]) == (1, False, 1)
    assert {error["param"] for error in report["errors"]} == {"method", "url"}


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
def test_what_can_be_no_id_is_said_so_before_anybody_is_asked(cli: Cli, typed: str) -> None:
    ended = cli.run("status", typed, BATCHWRIGHT_URL="http://127.0.0.1:1")
    assert ended.exit_code == 3
    assert "`batchwright list` has them all" in ended.stderr


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (gzip.compress(LINE.encode()), "packed with gzip: unpack it first"),
        (LINE.encode("utf-16"), "`iconv -f utf-16 -t utf-8`"),
        (LINE.encode()[:10], "Must be .jsonl. `batchwright validate "),
    ],
    ids=["empty", "packed", "utf-16", "cut short"],
)
def test_a_file_that_can_be_no_input_is_named_with_the_remedy(
    cli: Cli, tmp_path: Path, content: bytes, why: str
) -> None:
    path = tmp_path / "input.jsonl"
    path.write_bytes(content)
    ended = cli.run("submit", str(path))
    assert ended.exit_code == 3
    assert ended.stderr.startswith(str(path))
    assert why in ended.stderr


def test_a_packed_file_is_not_valid_and_said_to_be_packed(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl.gz"
    path.write_bytes(gzip.compress(LINE.encode()))
    ended = cli.run("validate", str(path))
    assert ended.exit_code == 1
    assert ended.stderr == f"{path} is packed with gzip: unpack it first.\n"


def test_the_requests_may_come_through_a_pipe(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(LINE,))
    writer.start()
    ended = cli.run("submit", str(path))
    writer.join()
    assert ended.exit_code == 0, ended.stderr


def test_the_version_is_told(cli: Cli) -> None:
    ended = cli.run("--version")
    assert (ended.exit_code, ended.stdout) == (0, f"batchwright {version('batchwright')}\n")


def test_whoever_runs_dev_here_is_told_how_to_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".batchwright").mkdir()
    (tmp_path / ".batchwright" / "dev.env").touch()
    monkeypatch.delenv("BATCHWRIGHT_DATABASE_URL", raising=False)

    async def ask() -> None:
        raise DatabaseUnavailable("PostgreSQL does not answer")

    with pytest.raises(typer.Exit):
        answered(ask())
    assert capsys.readouterr().err == (
        "PostgreSQL does not answer; `. .batchwright/dev.env` names what `batchwright dev` runs here.\n"
    )


def test_a_wrong_window_is_told_in_the_words_of_the_api(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    ended = cli.run("submit", str(path), "--window", "soon")
    assert ended.exit_code == 3
    assert "soon" in ended.stderr


def test_an_api_that_is_not_there_is_said_to_be_missing(cli: Cli) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        ended = cli.run("list", BATCHWRIGHT_URL=url)
    assert ended.exit_code == 3
    assert (
        ended.stderr
        == f"Nothing answers at {url}: start `batchwright dev`, or set BATCHWRIGHT_URL or --url.\n"
    )


def test_a_wrong_setting_is_named(cli: Cli) -> None:
    ended = cli.run("list", BATCHWRIGHT_URL="nowhere")
    assert ended.exit_code == 3
    assert "BATCHWRIGHT_URL" in ended.stderr


def test_a_database_that_is_away_is_told_by_the_api(cli: Cli) -> None:
    cli.house.database.rows.failing = DatabaseUnavailable("refused")
    try:
        ended = cli.run("list")
    finally:
        cli.house.database.rows.failing = None
    assert ended.exit_code == 3
    assert ended.stderr.strip()
    assert "Traceback" not in ended.output


def test_what_is_no_batchwright_is_noticed(cli: Cli) -> None:
    ended = cli.run("status", UNKNOWN, BATCHWRIGHT_URL=f"{cli.url}/docs?")
    assert (ended.exit_code, "is not Batchwright" in ended.stderr) == (3, True)


@pytest.mark.parametrize("program", ["simulator", "worker", "api"])
def test_a_process_gets_its_own_options(cli: Cli, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)  # which the command replaces
    monkeypatch.delitem(sys.modules, f"{program}.__main__", raising=False)  # of another test
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
