"""submit, status, watch, list, cancel, pause, resume, delete: their actions, output and exit codes."""

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from batchwright.api.services.batches import progress_events as batch_events
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import (
    ErrorCount,
    ErrorExample,
    ModelCounts,
    StartFit,
    WindowFit,
)
from batchwright.contracts.terms import BatchStatus, ValidationError
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.batches.custom_ids import FoundBatches
from batchwright.database.tables.batches.waiting_reasons import WaitingSource
from batchwright.rules.batch_filters import BatchFilters
from batchwright.rules.ids import request_id
from batchwright.rules.results.output_lines import error_line
from batchwright.starter.client import Client, ClientError
from batchwright.starter.commands.batches.watch import LiveProgress, TextProgress
from tests.fakes.tables.batches.custom_ids import part_of
from tests.unit.starter.cli import LATER, LINE, Cli, run_now, served

STATUSES = [
    (BatchStatus.COMPLETED, 0),
    (BatchStatus.FAILED, 1),
    (BatchStatus.EXPIRED, 1),
    (BatchStatus.CANCELLED, 1),
]
NEWEST = "batch_" + "f" * 32
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


@pytest.mark.parametrize(("status", "code"), STATUSES)
def test_status_exits_with_the_code_of_the_batch_status(
    cli: Cli, tmp_path: Path, status: BatchStatus, code: int
) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    assert cli.run("status", batch_id).exit_code == 2
    cli.end(batch_id, status)
    ended = cli.run("status", batch_id)
    assert ended.exit_code == code
    assert status.value in ended.stdout


def test_status_shows_models_and_why_they_wait(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    cli.begin(
        row, ModelCounts(model="llama[7b]", lines=1_000, completed=2), ModelCounts(model="qwen", lines=5)
    )
    cli.waits(row, "qwen", "no worker polls [its queue]", WaitingSource.FLEET)
    cli.waits(row, "", "paused", WaitingSource.USER)
    shown = cli.run("status", row.order.batch_id, COLUMNS="80").stdout
    assert "in_progress, paused" in shown
    assert "llama[7b]: " in shown
    assert "of 1,000 lines" in shown
    assert "qwen: no worker polls [its queue]" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_status_shows_failed_lines_by_code_with_an_example_on_one_line(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    example = ErrorExample(custom_id="req-[7]", message="too long:\n\x1b[31m9,000  tokens")
    errors = [
        ErrorCount(code="http_400", model="llama", count=1_200, example=example),
        ErrorCount(code="batch_expired", count=1, example=ErrorExample(custom_id="b", message="Late.")),
    ]
    cli.end(row.order.batch_id, errors_summary=errors)
    shown = cli.run("status", row.order.batch_id).stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "failed 1,200 lines: http_400 (llama), e.g. 'req-[7]': too long: [31m9,000 tokens" in lines
    assert "failed 1 line: batch_expired, e.g. 'b': Late." in lines


def test_status_counts_no_lines_before_they_are_known(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    shown = cli.run("status", row.order.batch_id).stdout
    assert "validating" in shown
    assert "lines" not in shown


def test_status_lists_the_first_errors_of_validation(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    errors = [ValidationError(code="invalid_url", message="Bad.", line=number) for number in range(1, 13)]
    batches = cli.api.database.batches
    run_now(batches.fail_validation("default", row.order.batch_id, errors=errors, total=12, at=LATER))
    ended = cli.run("status", row.order.batch_id)
    assert ended.exit_code == 1
    assert "line 10: Bad. (invalid_url)" in ended.stdout
    assert "line 11" not in ended.stdout
    assert "and 2 more errors" in ended.stdout


def test_fields_that_only_a_newer_api_knows_are_accepted_and_printed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    cli.begin(row, ModelCounts(model="llama", lines=1))
    answer = json.loads(cli.run("status", row.order.batch_id, "--json").stdout)
    answer["new"] = {"a": [1.5, None]}
    answer["request_counts"]["new"] = "text"
    answer["x_batchwright"]["models"][0]["new"] = True

    def answered(*_: object, **options: object) -> httpx.Response:
        return httpx.Response(200, json=answer)

    monkeypatch.setattr("httpx.Client.request", answered)
    shown = cli.run("status", row.order.batch_id, "--json")
    assert (shown.exit_code, json.loads(shown.stdout)) == (2, answer)


def test_watch_stays_until_the_end(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id)
    ended = cli.run("watch", batch_id, *FAST)
    assert (ended.exit_code, "completed" in ended.stdout) == (0, True)


def test_watch_survives_an_unavailable_api(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_events, "MAX_LISTENERS", 0)  # `watch` polls
    batch_id = cli.submitted(tmp_path).order.batch_id
    rows = cli.api.database.rows
    failures: list[Exception | None] = [DatabaseUnavailable("refused"), DatabaseUnavailable("refused"), None]

    def between_looks(seconds: float) -> None:
        rows.failing = None
        if len(failures) == 1:
            cli.end(batch_id)
        rows.failing = failures.pop(0)

    monkeypatch.setattr("batchwright.starter.commands.batches.watch.time.sleep", between_looks)
    assert cli.run("watch", batch_id).exit_code == 0
    assert failures == []


def test_watch_without_a_terminal_prints_each_change_in_a_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_events, "MAX_LISTENERS", 0)  # `watch` polls
    row = cli.submitted(tmp_path)
    responses: list[Callable[[], None]] = [
        lambda: None,
        lambda: cli.begin(row, ModelCounts(model="llama", lines=1)),
        lambda: None,
        lambda: cli.end(row.order.batch_id),
    ]

    def between_looks(seconds: float) -> None:
        responses.pop(0)()

    monkeypatch.setattr("batchwright.starter.commands.batches.watch.time.sleep", between_looks)
    shown = cli.run("watch", row.order.batch_id).stderr.splitlines()
    assert [line.split(";")[0] for line in shown] == ["0 of 0 lines, validating", "0 of 1 lines, in_progress"]


def test_watch_without_a_terminal_prints_each_error_once(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_events, "MAX_LISTENERS", 0)  # `watch` polls
    row = cli.submitted(tmp_path)
    cli.begin(row, ModelCounts(model="llama", lines=9))
    responses: list[Callable[[], None]] = [
        lambda: cli.fails(row, "llama", 1, "http_400"),
        lambda: cli.fails(row, "llama", 2, "http_400"),
        lambda: cli.fails(row, "llama", 3, "http_404"),
        lambda: cli.end(row.order.batch_id),
    ]

    def between_looks(seconds: float) -> None:
        responses.pop(0)()

    monkeypatch.setattr("batchwright.starter.commands.batches.watch.time.sleep", between_looks)
    shown = cli.run("watch", row.order.batch_id).stderr.splitlines()
    assert [line for line in shown if "e.g." in line] == [
        "failed: 1 line: http_400 (llama), e.g. 'c': why",
        "failed: 3 lines: http_404 (llama), e.g. 'c': why",
    ]


def act_after_each_state(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], None]) -> None:
    """Call the next one of `steps` each time `watch` has shown a state. Let the API poll often."""
    left, show = list(steps), TextProgress.show

    def show_and_act(progress: TextProgress, batch: BatchObject) -> None:
        show(progress, batch)
        if left:
            left.pop(0)()

    monkeypatch.setattr(TextProgress, "show", show_and_act)
    monkeypatch.setattr(batch_events, "POLL_SECONDS", 0.01)


def test_watch_shows_each_event_without_a_poll(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    act_after_each_state(
        monkeypatch,
        lambda: None,  # the state that `watch` reads first is the first event, too
        lambda: cli.begin(row, ModelCounts(model="llama", lines=9)),
        lambda: cli.fails(row, "llama", 2, "http_400"),
        lambda: cli.end(row.order.batch_id),
    )
    polls: list[str] = []
    monkeypatch.setattr("batchwright.starter.commands.batches.watch._poll", polls.append)
    shown = cli.run("watch", row.order.batch_id)
    assert [line.split(";")[0] for line in shown.stderr.splitlines()] == [
        "0 of 0 lines, validating",
        "0 of 9 lines, in_progress",
        "failed: 2 lines: http_400 (llama), e.g. 'c': why",
    ]
    assert (shown.exit_code, polls) == (0, [])


def test_watch_polls_once_after_a_cut_and_then_listens_again(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    streams: list[str] = []
    real = Client.events

    def cut_once(client: Client, batch_id: str) -> Generator[BatchObject]:
        streams.append(batch_id)
        for batch in real(client, batch_id):
            yield batch
            if len(streams) == 1:
                raise ClientError("cut", is_transient=True)

    monkeypatch.setattr(Client, "events", cut_once)
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    # It shows the first state, the event before the cut, the poll, and the event of the second stream.
    act_after_each_state(monkeypatch, nothing, nothing, nothing, lambda: cli.end(row.order.batch_id))
    assert cli.run("watch", row.order.batch_id, *FAST).exit_code == 0
    assert len(streams) == 2


def test_watch_listens_again_after_an_outage_of_the_database(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    rows, real = cli.api.database.rows, Client.events
    streams: list[str] = []

    def in_an_outage_at_first(client: Client, batch_id: str) -> Generator[BatchObject]:
        streams.append(batch_id)
        rows.failing = DatabaseUnavailable("refused") if len(streams) == 1 else None
        yield from real(client, batch_id)

    def end_the_outage(seconds: float) -> None:
        rows.failing = None
        assert len(streams) == 1, "the stream is not opened again"

    monkeypatch.setattr(Client, "events", in_an_outage_at_first)
    monkeypatch.setattr("batchwright.starter.commands.batches.watch.time.sleep", end_the_outage)
    # It shows the first state, the poll, and the event of the second stream.
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    act_after_each_state(monkeypatch, nothing, nothing, lambda: cli.end(row.order.batch_id))
    assert cli.run("watch", row.order.batch_id).exit_code == 0
    assert len(streams) == 2


def test_watch_polls_an_older_api_that_has_no_events(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    monkeypatch.setattr("batchwright.starter.client._EVENTS", "/x/older")
    steps: list[Callable[[], None]] = [lambda: None, lambda: None, lambda: cli.end(row.order.batch_id)]

    def between_looks(seconds: float) -> None:
        steps.pop(0)()

    monkeypatch.setattr("batchwright.starter.commands.batches.watch.time.sleep", between_looks)
    assert cli.run("watch", row.order.batch_id).exit_code == 0
    assert steps == []


def test_progress_bars_show_the_most_frequent_error_of_each_model(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    cli.begin(row, ModelCounts(model="llama", lines=9), ModelCounts(model="qwen[7b]", lines=9))
    cli.fails(row, "qwen[7b]", 2, "http_404")
    board = LiveProgress()
    shown = json.loads(cli.run("status", row.order.batch_id, "--json").stdout)
    shown["x_batchwright"]["waiting"] = []  # it is waiting for a worker
    board.show(BatchObject.model_validate(shown))
    notes = [task.fields["note"] for task in board.bars.tasks]
    assert notes == ["[red]2 failed: http_404[/red]", "", "[red]2 failed: http_404[/red]"]


def test_watch_without_a_terminal_prints_when_a_batch_no_longer_fits_its_window(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_events, "MAX_LISTENERS", 0)  # `watch` polls
    row = cli.submitted(tmp_path)
    cli.begin(row, ModelCounts(model="llama", lines=1))
    cli.forecast(row, WindowFit.FITS)
    steps: list[Callable[[], None]] = [
        lambda: cli.forecast(row, WindowFit.FITS),
        lambda: cli.forecast(row, WindowFit.LATE),
        lambda: cli.end(row.order.batch_id),
    ]

    def between_looks(seconds: float) -> None:
        steps.pop(0)()

    monkeypatch.setattr("batchwright.starter.commands.batches.watch.time.sleep", between_looks)
    shown = cli.run("watch", row.order.batch_id).stderr.splitlines()
    expected = [line.rsplit("; ", 1)[1] for line in shown]
    assert expected == [
        "done in 4 min (90 %: 10 h 5 min), fits the window, 12.5 lines/s, 3,000 lines ahead",
        "done in 4 min (90 %: 10 h 5 min), late, 12.5 lines/s, 3,000 lines ahead",
    ]


def test_status_shows_the_forecast(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    cli.begin(row, ModelCounts(model="llama", lines=1))
    cli.forecast(row, WindowFit.AT_RISK)
    shown = cli.run("status", row.order.batch_id).stdout
    assert "done in 4 min (90 %: 10 h 5 min), may be late, 12.5 lines/s, 3,000 lines ahead" in shown


def test_status_and_watch_show_the_forecast_made_before_the_batch_began(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    cli.forecast_start(row, StartFit.CANNOT)
    expected = "4 min (90 %: 10 h 5 min), cannot be done in the window, 3,000 lines ahead"
    assert expected in cli.run("status", row.order.batch_id).stdout
    cli.end(row.order.batch_id)
    assert f"at start {expected}" in " ".join(cli.run("watch", row.order.batch_id).stdout.split())


def test_watch_prints_the_forecast_made_before_the_batch_began_once(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_events, "MAX_LISTENERS", 0)  # `watch` polls
    row = cli.submitted(tmp_path)
    steps: list[Callable[[], None]] = [
        lambda: cli.forecast_start(row, StartFit.FITS),
        lambda: cli.begin(row, ModelCounts(model="llama", lines=1)),
        lambda: cli.end(row.order.batch_id),
    ]

    def between_looks(seconds: float) -> None:
        steps.pop(0)()

    monkeypatch.setattr("batchwright.starter.commands.batches.watch.time.sleep", between_looks)
    shown = cli.run("watch", row.order.batch_id).stderr
    assert shown.count("forecast at the start: 4 min (90 %: 10 h 5 min), fits the window") == 1


def test_retry_takes_the_codes_of_the_lines(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    line = error_line(request_id(batch_id, 0), "a", LineCode.REQUEST_TIMEOUT, "late")
    cli.end(batch_id, error=line + b"\n")
    refused = cli.run("retry", batch_id, "--code", "http_400", "--code", "batch_expired")
    assert refused.exit_code == 3
    assert "no line of it failed with batch_expired or http_400" in refused.stderr
    retried = json.loads(cli.run("retry", batch_id, "--code", "request_timeout", "--json").stdout)
    assert retried["x_batchwright"]["origin"]["codes"] == ["request_timeout"]


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


def test_list_shows_only_batches_that_meet_all_options(cli: Cli, tmp_path: Path) -> None:
    tenant = {"BATCHWRIGHT_TENANT": "filters"}
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    pairs = [("--metadata", "run=7"), ("--metadata", "run=8")]
    seventh, eighth = [cli.run("submit", str(path), *pair, **tenant).stdout.strip() for pair in pairs]

    def listed(*options: str) -> list[str]:
        page = json.loads(cli.run("list", "--json", *options, **tenant).stdout)
        return [batch["id"] for batch in page["data"]]

    assert listed("--metadata", "run=7") == [seventh]
    assert listed("--metadata", "run=8", "--status", "validating", "--created-after", "2020-01-01") == [
        eighth
    ]
    assert listed("--created-before", "2020-01-01T00:00") == listed("--model", "llama") == []
    assert "No batch has all of this" in cli.run("list", "--status", "failed", **tenant).stderr


def test_list_finds_the_batches_of_a_line_and_continues_a_search_without_a_batch(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = run_now(cli.api.create("searched"))
    run_now(cli.api.database.custom_ids.store("searched", batch.id, 0, part_of("a")))
    assert run_now(cli.api.database.batches.start("searched", batch.id, total=1, models=[], at=LATER))
    search, cursors = cli.api.database.custom_ids.search, list[str | None]()

    async def slow_search(
        tenant: str, custom_id: str, *, limit: int, after: str | None, filters: BatchFilters
    ) -> FoundBatches:
        cursors.append(after)
        if after is None:
            return FoundBatches([], NEWEST)
        return await search(tenant, custom_id, limit=limit, after=None, filters=filters)

    monkeypatch.setattr(cli.api.database.custom_ids, "search", slow_search)
    shown = cli.run("list", "--custom-id", "a", "--json", BATCHWRIGHT_TENANT="searched")
    assert [each["id"] for each in json.loads(shown.stdout)["data"]] == [batch.id]
    assert cursors == [None, NEWEST]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--status", "done"), "'completed'"),
        (("--created-after", "yesterday"), "%Y-%m-%d"),
        (("--metadata", "run"), "--metadata 'run' is not key=value"),
    ],
)
def test_a_wrong_filter_of_list_is_a_usage_error(cli: Cli, options: tuple[str, ...], words: str) -> None:
    refused = cli.run("list", *options)
    assert (refused.exit_code, refused.stdout, words in refused.stderr) == (3, "", True)


def test_the_option_tenant_wins_over_the_environment(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    foreign = cli.run("status", batch_id, BATCHWRIGHT_TENANT="other")
    assert (foreign.exit_code, "No batch found" in foreign.stderr) == (3, True)
    assert cli.run("status", batch_id, "--tenant", "default", BATCHWRIGHT_TENANT="other").exit_code == 2


def test_cancel_shows_cancelling(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    ended = cli.run("cancel", batch_id)
    assert (ended.exit_code, "cancelling" in ended.stdout) == (0, True)
    assert (batch_id, "cancel") in cli.api.temporal.signals


def test_cancel_and_wait_succeeds_for_a_cancelled_batch(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, BatchStatus.CANCELLED)
    assert cli.run("cancel", batch_id, "--wait", *FAST).exit_code == 0


def test_a_completed_batch_cannot_be_cancelled(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id)
    refused = cli.run("cancel", batch_id)
    assert refused.exit_code == 3
    assert refused.stderr.strip() == "Cannot cancel a batch with status 'completed'."


def test_pause_and_resume_show_the_new_status(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    assert "validating, paused" in cli.run("pause", batch_id).stdout
    assert "paused" not in cli.run("resume", batch_id).stdout


@pytest.mark.parametrize(("command", "paused"), [("pause", True), ("resume", False)])
def test_pause_and_resume_reach_the_workflow(cli: Cli, tmp_path: Path, command: str, paused: bool) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    shown = cli.run(command, batch_id, "--json")
    assert json.loads(shown.stdout)["x_batchwright"]["paused"] is paused
    assert (batch_id, command) in cli.api.temporal.signals


def test_a_batch_is_deleted_when_it_has_ended(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    refused = cli.run("delete", batch_id)
    assert (refused.exit_code, "cancel it, or wait" in refused.stderr) == (3, True)
    run_now(cli.api.database.batches.end_without_files("default", batch_id, BatchStatus.EXPIRED, [], LATER))
    deleted = cli.run("delete", batch_id)
    assert (deleted.exit_code, deleted.stdout, deleted.stderr) == (0, "", f"Deleted {batch_id}.\n")
    again = cli.run("delete", batch_id, "--keep-files", "--json")
    assert json.loads(again.stdout) == {"id": batch_id, "object": "batch", "deleted": True}
