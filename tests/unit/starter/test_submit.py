"""submit: what it creates, what it prints, and how a command is repeated."""

import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from batchwright.contracts.terms import BatchStatus
from tests.unit.starter.cli import LINE, Cli, run_now, served

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


def test_submit_uploads_the_file_and_prints_only_the_id(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path, "--window", "2h", "--metadata", "a=1", "--metadata", "b=x=y")
    assert row.order.completion_window == "2h"
    assert row.order.metadata == {"a": "1", "b": "x=y"}
    file = run_now(cli.api.database.files.get("default", row.order.input_file_id))
    assert file is not None
    assert file.filename == "input.jsonl"
    assert cli.api.storage.objects[file.storage_key] == LINE.encode()


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
    before = set(cli.api.storage.objects), set(cli.api.database.rows.files)
    refused = cli.run("submit", str(path), *wrong)
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert (set(cli.api.storage.objects), set(cli.api.database.rows.files)) == before


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("submit", "--window", "5x"),
        ("submit", "--endpoint", "/v1/nope"),
        ("submit", "--max-cost", "0"),
        ("submit", "--start-at", "tomorrow"),
        ("schedules create --cron daily", "--window", "5x"),
    ],
)
def test_a_wrong_option_is_refused_before_the_upload(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str, value: str
) -> None:
    path, sent = tmp_path / "input.jsonl", list[httpx.Request]()
    path.write_text(LINE)

    def record(_: httpx.Client, request: httpx.Request, **__: Any) -> httpx.Response:
        sent.append(request)
        return httpx.Response(500, request=request)

    monkeypatch.setattr(httpx.Client, "send", record)
    refused = cli.run(*command.split(), str(path), option, value)
    assert (refused.exit_code, refused.stdout, sent) == (3, "", [])
    assert refused.stderr.startswith(option)


def lose_answers(monkeypatch: pytest.MonkeyPatch, path: str, times: int) -> list[str]:
    """Discard the first `times` responses to POST `path`. The client sees a failure, but the API has acted.

    Return a list to which the idempotency key of each call is added.
    """
    keys: list[str] = []
    send = httpx.Client.send

    def losing(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        answer = send(client, request, **options)
        if (request.method, request.url.path) == ("POST", path):
            keys.append(request.headers["Idempotency-Key"])
            if len(keys) <= times:
                raise httpx.ReadTimeout("no answer", request=request)
        return answer

    monkeypatch.setattr(httpx.Client, "send", losing)
    return keys


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
def test_a_command_that_timed_out_prints_how_to_repeat_it_and_creates_one_batch(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    rows = cli.api.database.rows
    before = len(rows.batches), len(rows.files)
    keys = lose_answers(monkeypatch, path, times=2)
    file = tmp_path / "input.jsonl"
    file.write_text(LINE)
    lost = cli.run("submit", str(file))
    again = ("--idempotency-key", keys[0])
    assert (lost.exit_code, lost.stdout) == (3, "")
    assert " ".join(again) in " ".join(lost.stderr.split())
    assert cli.run("submit", str(file), *again).exit_code == 3
    submitted = [cli.run("submit", str(file), *again) for _ in range(2)]
    assert {each.stdout for each in submitted} == {submitted[0].stdout}
    assert len(set(keys)) == 1
    assert (len(rows.batches), len(rows.files)) == (before[0] + 1, before[1] + 1)


def test_each_command_has_a_key_of_its_own(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = lose_answers(monkeypatch, "/v1/batches", times=0)
    first, second = cli.submitted(tmp_path), cli.submitted(tmp_path)
    assert first.order.batch_id != second.order.batch_id
    assert len(set(keys)) == 2


def test_a_repeated_command_that_is_refused_keeps_the_file_of_its_key(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "input.jsonl"
    file.write_text(LINE)
    again = ("--idempotency-key", "mine")
    refused = cli.run("submit", str(file), *again, "--window", "5x")
    submitted = cli.run("submit", str(file), *again)
    assert (refused.exit_code, submitted.exit_code) == (3, 0)
    assert "--idempotency-key" not in refused.stderr
    order = cli.row(submitted.stdout.strip()).order
    assert run_now(cli.api.database.files.get("default", order.input_file_id)) is not None


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--idempotency-key", ""), "Invalid Idempotency-Key header"),  # as of a variable that is not set
        (("--idempotency-key", "\u00fc"), "a header or the body is not valid"),
        (("--idempotency-key", "a\nb"), "a header or the body is not valid"),
        (("--header", "x-team=\u00fc"), "a header or the body is not valid"),
        (("--header", "a b=c"), "a header or the body is not valid"),
    ],
)
def test_a_key_or_header_that_cannot_be_sent_is_refused_and_creates_nothing(
    cli: Cli, tmp_path: Path, option: tuple[str, str], message: str
) -> None:
    file = tmp_path / "input.jsonl"
    file.write_text(LINE)
    rows = cli.api.database.rows
    before = set(rows.batches), set(rows.files)
    refused = cli.run("submit", str(file), *option)
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert message in " ".join(refused.stderr.split())
    assert "Repeat the command" not in refused.stderr
    assert (set(rows.batches), set(rows.files)) == before


def test_submit_as_json_prints_the_batch_as_the_api_answers_it(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    batch = json.loads(cli.run("submit", str(path), "--json").stdout)
    assert batch["object"] == "batch"
    assert batch["errors"] is None
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}


@pytest.mark.parametrize(("status", "code"), STATUSES)
def test_submit_and_wait_exits_with_the_code_of_the_end(
    cli: Cli, tmp_path: Path, status: BatchStatus, code: int
) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    with cli.ending(status):
        ended = cli.run("submit", str(path), "--wait", *FAST)
    assert ended.exit_code == code
    assert status.value in ended.stdout


def test_the_list_shows_that_a_batch_is_scheduled(cli: Cli, tmp_path: Path) -> None:
    later = int(time.time()) + 86_400
    row = cli.submitted(tmp_path, "--start-at", str(later))
    (line,) = (each for each in cli.run("list").stdout.splitlines() if row.order.batch_id in each)
    assert "validating, scheduled" in line
