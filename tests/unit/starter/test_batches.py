"""status, list, cancel, pause, resume, retry, delete: their actions, output and exit codes."""

import json
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_names import CONTROL_QUEUE, IO_QUEUE
from batchwright.contracts.temporal_payloads.batch import (
    ErrorCount,
    ErrorExample,
    ModelCounts,
    WindowFit,
)
from batchwright.contracts.terms import BatchStatus, ValidationError
from batchwright.database.tables.batches.custom_ids import FoundBatches
from batchwright.database.tables.batches.waiting_reasons import WaitingSource
from batchwright.rules.batch_filters import BatchFilters
from batchwright.rules.ids import request_id
from batchwright.rules.results.output_lines import error_line
from batchwright.rules.worker_stats import polled_queue_stats
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


@pytest.mark.parametrize("columns", [None, "60"])
def test_what_tenants_and_backends_write_cannot_control_the_terminal(
    cli: Cli, tmp_path: Path, columns: str | None
) -> None:
    escapes = "\x1b]0;title\x07\x1b[2J\x9b2J\r\u202ered"
    row = cli.submitted(tmp_path, "--metadata", f"note={escapes}")
    cli.begin(row, ModelCounts(model=f"llama{escapes}", lines=1))
    cli.waits(row, "", f"the backend says {escapes}", WaitingSource.FLEET)
    shown = cli.run("status", row.order.batch_id, **({"COLUMNS": columns} if columns else {})).stdout
    assert shown.count("]0;title[2J2Jred") == 4  # metadata, model, and two reasons why it waits
    assert not [each for each in shown if each != "\n" and not each.isprintable()]


def test_status_shows_models_and_why_they_wait(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    cli.begin(
        row, ModelCounts(model="llama[7b]", lines=1_000, completed=2), ModelCounts(model="qwen", lines=5)
    )
    cli.waits(row, "qwen", "no worker polls [its queue]", WaitingSource.FLEET)
    cli.waits(row, "", "paused", WaitingSource.USER)
    shown = cli.run("status", row.order.batch_id, COLUMNS="80", TTY_COMPATIBLE="1", TERM="dumb").stdout
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
    ends = cli.api.database.batch_ends
    run_now(ends.fail_validation("default", row.order.batch_id, errors=errors, total=12, at=LATER))
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


def test_status_shows_the_forecast(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    cli.begin(row, ModelCounts(model="llama", lines=1))
    cli.forecast(row, WindowFit.AT_RISK)
    shown = cli.run("status", row.order.batch_id).stdout
    assert "done in 4 min (90 %: 10 h 5 min), may be late, 12.5 lines/s, 3,000 lines ahead" in shown


def test_a_repeated_rerun_prints_the_same_batch_and_claims_no_new_one(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    line = error_line(request_id(batch_id, 0), "a", LineCode.BATCH_EXPIRED, "late")
    cli.end(batch_id, BatchStatus.EXPIRED, error=line + b"\n")
    for command, verb in (("retry", "retries"), ("resume", "resumes")):
        first, second = (cli.run(command, batch_id) for _ in range(2))
        new = first.stdout.split()[1]
        assert first.stderr == second.stderr == f"{new} {verb} {batch_id}.\n"


def test_retry_takes_the_codes_of_the_lines(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    line = error_line(request_id(batch_id, 0), "a", LineCode.REQUEST_TIMEOUT, "late")
    cli.end(batch_id, error=line + b"\n")
    refused = cli.run("retry", batch_id, "--code", "http_400", "--code", "batch_expired")
    assert refused.exit_code == 3
    assert "no line of it failed with batch_expired or http_400" in refused.stderr
    retried = json.loads(cli.run("retry", batch_id, "--code", "request_timeout", "--json").stdout)
    assert retried["x_batchwright"]["origin"]["codes"] == ["request_timeout"]


def test_list_pages_from_newest_to_oldest(cli: Cli, tmp_path: Path) -> None:
    tenant = {"BATCHWRIGHT_TENANT": "lists"}
    assert "no batches yet" in cli.run("list", **tenant).stderr
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    first, second = [cli.run("submit", str(path), **tenant).stdout.strip() for _ in range(2)]
    stats = polled_queue_stats([CONTROL_QUEUE, IO_QUEUE])  # so that no batch waits for a worker
    run_now(cli.api.database.workers.record_heartbeat("one:1", stats))
    page = cli.run("list", "--limit", "1", COLUMNS="80", **tenant)
    assert second in page.stdout
    assert first not in page.stdout
    assert f"--after {second}" in page.stderr
    rest = json.loads(cli.run("list", "--after", second, "--json", **tenant).stdout)
    assert [batch["id"] for batch in rest["data"]] == [first]
    assert max(len(line) for line in page.stdout.splitlines()) <= 80


def test_list_shows_why_a_batch_waits(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    for model in ("llama", "qwen"):
        cli.waits(row, model, "rate [limited]", WaitingSource.WORKER)
    header, *lines = cli.run("list", COLUMNS="200").stdout.splitlines()
    [line] = [line for line in lines if row.order.batch_id in line]
    assert header.split() == ["batch", "status", "waits", "created", "settled"]
    assert "llama: rate [limited]; " in line


def test_list_shows_a_pause_in_the_status(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    assert cli.run("pause", batch_id).exit_code == 0
    [line] = [line for line in cli.run("list", COLUMNS="200").stdout.splitlines() if batch_id in line]
    assert "validating, paused" in line


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
    assert "No batch matches all of these options" in cli.run("list", "--status", "failed", **tenant).stderr


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
        (("--created-after", "yesterday"), "YYYY-MM-DD"),
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


def test_a_cap_for_a_paused_batch_is_said_to_have_no_effect(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.run("pause", batch_id)
    resumed = cli.run("resume", batch_id, "--max-cost", "5")
    assert (resumed.exit_code, "only apply to ended batches" in resumed.stderr) == (0, True)


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
    run_now(
        cli.api.database.batch_ends.end_without_files("default", batch_id, BatchStatus.EXPIRED, [], LATER)
    )
    deleted = cli.run("delete", batch_id)
    assert (deleted.exit_code, deleted.stdout, deleted.stderr) == (0, "", f"Deleted {batch_id}.\n")
    again = cli.run("delete", batch_id, "--keep-files", "--json")
    assert json.loads(again.stdout) == {"id": batch_id, "object": "batch", "deleted": True}
