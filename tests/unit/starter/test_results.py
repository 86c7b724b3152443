"""`batchwright results` and `validate`, and how commands report errors."""

import bz2
import gzip
import json
import os
import socket
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import DatabaseUnavailable
from batchwright.settings import Settings
from batchwright.starter.client_errors import ClientError
from batchwright.starter.commands.batches.results import follow_results
from batchwright.starter.diagnostics.connections import run_or_stop
from batchwright.starter.diagnostics.findings import DiagnosticReport, problem
from batchwright.storage.base import StorageFull
from batchwright.storage.spill.scratch_file import ScratchFile
from tests.fakes.small_memory import small_memory
from tests.unit.starter.cli import LATER, LINE, Cli, run_now, served
from tests.unit.starter.test_demo_batch import a_batch

UNKNOWN = "batch_" + "0" * 32


@pytest.fixture(scope="module")
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def test_results_are_printed_unchanged(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, output=b'{"n": 1e400, "s": "\xc3\xa9"}\n', error=b"{}\n")
    assert cli.run("results", batch_id).stdout_bytes == b'{"n": 1e400, "s": "\xc3\xa9"}\n'
    assert cli.run("results", batch_id, "--errors").stdout_bytes == b"{}\n"


def test_results_replace_the_content_of_the_output_file(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, BatchStatus.EXPIRED, output=b"{}\n")
    target = tmp_path / "output.jsonl"
    target.write_bytes(b"of an earlier run, and longer\n")
    ended = cli.run("results", batch_id, "-o", str(target))
    assert (ended.exit_code, ended.stdout, target.read_bytes()) == (0, "", b"{}\n")
    elsewhere = cli.run("results", batch_id, "-o", str(tmp_path / "missing" / "file"))
    assert (elsewhere.exit_code, "cannot be written" in elsewhere.stderr) == (3, True)


def test_results_of_a_live_batch_do_not_exist_yet(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    early = cli.run("results", batch_id)
    assert (early.exit_code, f"batchwright watch {batch_id}" in early.stderr) == (2, True)


@pytest.mark.parametrize("is_ended", [False, True])
def test_results_can_be_followed_to_the_end(cli: Cli, tmp_path: Path, is_ended: bool) -> None:
    row = cli.submitted(tmp_path)
    cli.begin(row, ModelCounts(model="llama", lines=1))
    batch_id = row.order.batch_id
    output, error = line(1) + line(2), line(3)
    is_followed = threading.Event()

    def end() -> None:
        if is_ended or is_followed.wait(60):
            cli.end(batch_id, output=output, error=error)

    ending = threading.Thread(target=end)
    cli.api.temporal.on_ingested = is_followed.set  # once the API looks for the plans of the batch
    ending.start()
    if is_ended:
        ending.join()
    ended = cli.run("results", batch_id, "--follow")
    ending.join()
    assert (ended.exit_code, ended.stdout_bytes) == (0, output)
    assert cli.run("results", batch_id, "--follow", "--errors").stdout_bytes == error
    settled = cli.run("results", batch_id, "--follow", "--settled", "--errors")
    assert (settled.exit_code, settled.stdout_bytes) == (0, error)


def line(n: int) -> bytes:
    return b'{"id":"batch_req_%032d","custom_id":"c"}\n' % n


class BrokenSource:
    """Results of an ended batch with three lines. The first connection breaks in the third line.

    The second connection breaks at once.
    """

    def __init__(self) -> None:
        self.calls: list[str | None] = []

    def batch(self, batch_id: str) -> BatchObject:
        return a_batch(BatchStatus.COMPLETED)

    @contextmanager
    def live_results(
        self, batch_id: str, *, failed: bool, after: str | None = None, in_input_order: bool = True
    ) -> Generator[Iterator[bytes]]:
        self.calls.append(after)
        yield self._pieces(len(self.calls))

    def _pieces(self, call: int) -> Iterator[bytes]:
        if call == 1:
            yield line(1)[:20]
            yield line(1)[20:] + line(2) + line(3)[:-1]
        if call < 3:
            raise ClientError("broken", is_transient=True)
        yield line(3)


def test_a_follower_continues_after_its_last_whole_line() -> None:
    source = BrokenSource()
    found = b"".join(follow_results(source, "batch_1", failed=False, retry_seconds=0))
    assert found == line(1) + line(2) + line(3)
    second = f"batch_req_{2:032d}"
    assert source.calls == [None, second, second]


def test_a_follower_continues_until_the_batch_had_ended_before_the_response_began() -> None:
    class ShortResponses(BrokenSource):
        """Results of which each response ends after one line. The batch ends during the second response."""

        def batch(self, batch_id: str) -> BatchObject:
            return a_batch(BatchStatus.IN_PROGRESS if len(self.calls) < 2 else BatchStatus.COMPLETED)

        def _pieces(self, call: int) -> Iterator[bytes]:
            yield line(call)

    source = ShortResponses()
    found = b"".join(follow_results(source, "batch_1", failed=False, retry_seconds=0))
    assert found == line(1) + line(2) + line(3)
    assert source.calls == [None, f"batch_req_{1:032d}", f"batch_req_{2:032d}"]


def test_a_follower_in_the_order_of_settlement_prints_each_line_once() -> None:
    class RepeatedResponses(BrokenSource):
        """The second response begins again, in another order."""

        def _pieces(self, call: int) -> Iterator[bytes]:
            if call == 1:
                yield line(3) + line(1)[:20]
                raise ClientError("broken", is_transient=True)
            yield line(1) + line(3)
            yield line(2)

    source = RepeatedResponses()
    found = follow_results(source, "batch_1", failed=False, in_input_order=False, retry_seconds=0)
    assert list(found) == [line(3), line(1), line(2)]
    assert source.calls == [None, None]


def test_a_follower_names_the_disk_that_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(file: ScratchFile, needed_bytes: int) -> None:
        raise StorageFull(f"Following results needs {needed_bytes} bytes")

    small_memory(monkeypatch)
    monkeypatch.setattr(ScratchFile, "require", full)

    class Large(BrokenSource):
        def _pieces(self, call: int) -> Iterator[bytes]:
            yield b"".join(map(line, range(100)))

    with pytest.raises(StorageFull, match="Following results needs 1600 bytes"):
        list(follow_results(Large(), "batch_1", failed=False, in_input_order=False, retry_seconds=0))


def test_only_followed_results_can_be_in_the_order_of_settlement(cli: Cli) -> None:
    ended = cli.run("results", UNKNOWN, "--settled")
    assert (ended.exit_code, "--settled requires --follow" in ended.stderr) == (3, True)


def test_a_follower_gives_up_if_the_api_rejects_it() -> None:
    class Rejecting(BrokenSource):
        def _pieces(self, call: int) -> Iterator[bytes]:
            raise ClientError("no", is_rejected=True)

    with pytest.raises(ClientError, match="no"):
        list(follow_results(Rejecting(), "batch_1", failed=False, retry_seconds=0))


def test_results_without_a_success_point_to_the_errors(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, error=b"{}\n")
    ended = cli.run("results", batch_id)
    assert (ended.exit_code, "results --errors" in ended.stderr) == (1, True)


def test_without_failed_lines_the_command_succeeds(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, output=b"{}\n")
    ended = cli.run("results", batch_id, "--errors")
    assert (ended.exit_code, "No line" in ended.stderr) == (0, True)


def test_a_good_file_is_valid(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    ended = cli.run("validate", str(path))
    assert ended.exit_code == 0
    assert ended.stdout == f"{path}: 1 line, valid (llama 1)\n"


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
def test_an_invalid_id_is_refused_before_any_request(cli: Cli, typed: str) -> None:
    ended = cli.run("status", typed, BATCHWRIGHT_URL="http://127.0.0.1:1")
    assert ended.exit_code == 3
    assert "`batchwright list` shows all ids" in ended.stderr


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (bz2.compress(LINE.encode()), "compressed with bzip2: decompress it first"),
        (LINE.encode("utf-16"), "`iconv -f utf-16 -t utf-8`"),
        (LINE.encode()[:10], "Must be .jsonl. `batchwright validate "),
    ],
    ids=["empty", "packed", "utf-16", "cut short"],
)
def test_a_file_that_cannot_be_an_input_is_named_with_the_remedy(
    cli: Cli, tmp_path: Path, content: bytes, why: str
) -> None:
    path = tmp_path / "input.jsonl"
    path.write_bytes(content)
    ended = cli.run("submit", str(path))
    assert ended.exit_code == 3
    assert ended.stderr.startswith(str(path))
    assert why in ended.stderr


def test_a_compressed_file_is_invalid_and_reported_as_compressed(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl.gz"
    path.write_bytes(gzip.compress(LINE.encode()))
    ended = cli.run("validate", str(path))
    assert ended.exit_code == 1
    assert ended.stderr == f"{path} is compressed with gzip: decompress it first.\n"


def test_the_requests_may_come_through_a_pipe(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(LINE,))
    writer.start()
    ended = cli.run("submit", str(path))
    writer.join()
    assert ended.exit_code == 0, ended.stderr


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

    async def ask() -> None:
        raise DatabaseUnavailable("PostgreSQL does not answer")

    with pytest.raises(typer.Exit):
        run_or_stop(ask())
    assert capsys.readouterr().err == (
        "PostgreSQL does not answer; `. .batchwright/dev.env` sets the addresses of the "
        "`batchwright dev` stack here.\n"
    )


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


def test_pending_files_do_not_exist_yet(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    end = cli.api.database.batch_ends.end_without_files
    run_now(end("default", batch_id, BatchStatus.EXPIRED, [], LATER, files_until=LATER))
    early = cli.run("results", batch_id)
    assert (early.exit_code, "its files are not written yet" in early.stderr) == (2, True)
    assert "expired, files pending" in cli.run("status", batch_id).stdout
