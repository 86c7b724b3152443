"""Inputs that are too large for one batch: `submit` makes a group, and other commands accept its id."""

import gzip
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from batchwright.contracts.api_objects.openai import BatchObject, DeletedBatch
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import ErrorCount
from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow
from batchwright.rules.ids import request_id
from batchwright.rules.input.oversized_input import PartLimits
from batchwright.rules.results.output_lines import error_line
from batchwright.starter.client import Client
from tests.unit.starter.cli import LINE, Cli, served
from tests.unit.starter.test_collect import chat


@pytest.fixture(scope="module")
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


@pytest.fixture
def small(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands of an API whose batches have at most two lines."""

    def part_limits(client: Client) -> PartLimits:
        return PartLimits(lines=2, file_bytes=1_000_000)

    monkeypatch.setattr(Client, "part_limits", part_limits)
    return cli


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "input.jsonl"
    path.write_text("".join(LINE.replace('"a"', f'"{tmp_path.name}-{number}"') for number in range(5)))
    return path


def rows(cli: Cli, group: str) -> list[BatchRow]:
    """Return the batches of a group in the order of their creation."""
    batches = cli.api.database.rows.batches.values()
    found = [row for row in batches if (row.order.metadata or {}).get("batchwright.group") == group]
    return sorted(found, key=lambda row: row.order.batch_id)


def contents(cli: Cli, group: str) -> list[bytes]:
    files = cli.api.database.rows.files
    ids = [row.order.input_file_id for row in rows(cli, group)]
    return [cli.api.storage.objects[files["default", id].storage_key] for id in ids]


def submitted(cli: Cli, file: Path, *options: str) -> str:
    result = cli.run("submit", str(file), *options)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()


def test_an_input_that_is_too_large_becomes_a_group(small: Cli, file: Path) -> None:
    result = small.run("submit", str(file), "--window", "2h", "--metadata", "team=red")
    group = result.stdout.strip()
    assert group.startswith("group_")
    assert f"is too large for one batch. It becomes 3 batches: {group}." in result.stderr
    assert b"".join(contents(small, group)) == file.read_bytes()
    parts = rows(small, group)
    assert [(row.order.metadata or {})["batchwright.part"] for row in parts] == ["1/3", "2/3", "3/3"]
    assert {(row.order.completion_window, (row.order.metadata or {})["team"]) for row in parts} == {
        ("2h", "red")
    }


@pytest.mark.parametrize(
    ("options", "group"),
    [
        ((), "group_5ad3334a248b4dd9ef2c13a7665a28ee"),
        (
            ("--window", "2h", "--metadata", "team=red", "--priority", "4"),
            "group_b34efe76b82264496c5cfe888cf04d99",
        ),
    ],
    ids=["no options", "options"],
)
def test_the_id_of_a_group_depends_on_the_given_options_only(
    small: Cli, tmp_path: Path, options: tuple[str, ...], group: str
) -> None:
    """A new option does not change these ids, so that a newer command finds the groups of an older one."""
    path = tmp_path / "input.jsonl"
    path.write_text("".join(LINE.replace('"a"', f'"fixed-{number}"') for number in range(5)))
    assert submitted(small, path, *options) == group
    for row in rows(small, group):
        small.end(row.order.batch_id)


def test_the_limits_of_a_batch_are_those_of_the_api(cli: Cli) -> None:
    with Client(cli.url) as client:
        assert client.part_limits() == PartLimits(lines=50_000, file_bytes=200 * 1024 * 1024)


def test_a_key_that_may_not_read_submits_within_openais_limits(
    cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = httpx.Client.send

    def forbidding(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(403, json={"error": {"message": "Not allowed."}}, request=request)
        return send(client, request, **options)

    with monkeypatch.context() as patch:
        patch.setattr(httpx.Client, "send", forbidding)
        assert submitted(cli, file).startswith("batch_")


def test_an_input_that_fits_stays_one_batch(small: Cli, file: Path) -> None:
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]) + "\n\n")
    assert submitted(small, file).startswith("batch_")


def test_a_compressed_input_is_uploaded_as_it_is_and_never_divided(small: Cli, file: Path) -> None:
    content, packed = file.read_bytes(), file.with_name("input.jsonl.gz")
    packed.write_bytes(gzip.compress(content))
    batch_id = submitted(small, packed)
    files = small.api.database.rows.files
    stored = files["default", small.row(batch_id).order.input_file_id]
    assert (stored.filename, small.api.storage.objects[stored.storage_key]) == ("input.jsonl", content)


@pytest.mark.parametrize("lost", range(1, 7))
def test_a_repeated_command_creates_only_what_is_missing(
    small: Cli, file: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """The API handles the request, and the command is killed before it sees the response."""
    send, count = httpx.Client.send, 0

    def killed(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        nonlocal count
        response = send(client, request, **options)
        count += request.method == "POST"
        if request.method == "POST" and count == lost:
            raise KeyboardInterrupt
        return response

    with monkeypatch.context() as patch:
        patch.setattr(httpx.Client, "send", killed)
        assert small.run("submit", str(file)).exit_code != 0
    files = len(small.api.database.rows.files)
    group = submitted(small, file)
    assert len(rows(small, group)) == 3
    assert b"".join(contents(small, group)) == file.read_bytes()
    assert len(small.api.database.rows.files) - files == 3 - (lost + 1) // 2
    assert submitted(small, file) == group
    assert len(rows(small, group)) == 3


def test_a_group_that_has_ended_is_not_submitted_again_without_a_new_key(small: Cli, file: Path) -> None:
    group = submitted(small, file)
    for row in rows(small, group):
        small.end(row.order.batch_id, output=b"{}\n")
    again = small.run("submit", str(file))
    assert (again.exit_code, again.stdout) == (3, "")
    assert f"was submitted already as {group}, which has ended" in again.stderr
    other = submitted(small, file, "--idempotency-key", "second")
    assert other != group
    assert submitted(small, file, "--idempotency-key", "second") == other


def test_a_part_that_is_refused_is_named(small: Cli, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send = httpx.Client.send

    def refusing(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        if request.headers.get("Idempotency-Key", "").endswith("-2"):
            return httpx.Response(429, json={"error": {"message": "Too many."}}, request=request)
        return send(client, request, **options)

    with monkeypatch.context() as patch:
        patch.setattr(httpx.Client, "send", refusing)
        refused = small.run("submit", str(file))
    assert refused.exit_code == 3
    assert "Part 2 of 3 was not submitted: Too many. The parts before it run as group_" in refused.stderr
    group = refused.stderr.split(" run as ")[1].split(".")[0]
    incomplete = small.run("status", group)
    assert (incomplete.exit_code, "has no batch for part 2, 3 of 3" in incomplete.stderr) == (3, True)
    assert small.run("cancel", group).exit_code == 0
    assert submitted(small, file) == group


def test_options_that_need_one_batch_are_refused(small: Cli, file: Path) -> None:
    capped = small.run("submit", str(file), "--max-cost", "5")
    assert (capped.exit_code, "needs 3 batches" in capped.stderr) == (3, True)
    file.write_text(LINE * 3)
    repeated = small.run("submit", str(file))
    assert (repeated.exit_code, "line 2 has a custom id that an earlier line has" in repeated.stderr) == (
        3,
        True,
    )
    for command in ("resume", "retry"):
        capped = small.run(command, "group_1", "--max-cost", "5")
        assert (capped.exit_code, "--max-cost is the cap of one" in capped.stderr) == (3, True)
    unknown = small.run("watch", "group_1")
    assert (unknown.exit_code, "There is no group group_1" in unknown.stderr) == (3, True)


def test_status_shows_the_sums_and_each_part(small: Cli, file: Path) -> None:
    group = submitted(small, file)
    first, second, third = (row.order.batch_id for row in rows(small, group))
    small.end(first, output=b"{}\n")
    shown = small.run("status", group)
    assert (shown.exit_code, group in shown.stdout, "1,200 in, 34 out" in shown.stdout) == (2, True, True)
    assert all(id in shown.stdout for id in (first, second, third))
    listed = json.loads(small.run("status", group, "--json").stdout)
    assert [(batch["id"], batch["status"]) for batch in listed["data"]] == [
        (first, "completed"), (second, "validating"), (third, "validating"),
    ]  # fmt: skip
    for id in (second, third):
        small.end(id, BatchStatus.EXPIRED if id == third else BatchStatus.COMPLETED, output=b"{}\n")
    assert small.run("status", group).exit_code == 1


def test_results_of_a_group_are_those_of_its_parts_in_their_order(
    small: Cli, file: Path, tmp_path: Path
) -> None:
    group = submitted(small, file)
    ids = [row.order.batch_id for row in rows(small, group)]
    outputs = [b"".join(chat(f"row-{n}", f"answer {n}") for n in part) for part in ((1, 2), (3, 4), (5,))]
    for id, output in list(zip(ids, outputs, strict=True))[:2]:
        small.end(id, output=output)
    assert small.run("results", group).exit_code == 2
    small.end(ids[2], output=outputs[2])
    assert small.run("results", group).stdout_bytes == b"".join(outputs)
    assert small.run("watch", group).exit_code == 0
    (tmp_path / "table.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(5)))
    collected = small.run("collect", group, str(tmp_path / "table.csv"), "-o", str(tmp_path / "out.jsonl"))
    answers = [json.loads(line)["answer"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert (collected.exit_code, answers) == (0, [f"answer {n}" for n in range(1, 6)])


def test_cancel_stops_the_parts_that_run(small: Cli, file: Path) -> None:
    group = submitted(small, file)
    first, *others = (row.order.batch_id for row in rows(small, group))
    small.end(first, output=b"{}\n")
    cancelled = json.loads(small.run("cancel", group, "--json").stdout)
    assert [batch["status"] for batch in cancelled["data"]] == ["completed", "cancelling", "cancelling"]
    for id in others:
        small.end(id, BatchStatus.CANCELLED)
    again = small.run("cancel", group)
    assert (again.exit_code, "have ended already" in again.stderr) == (3, True)


def test_pause_and_resume_reach_the_parts_that_run(small: Cli, file: Path) -> None:
    group = submitted(small, file)
    first, *others = (row.order.batch_id for row in rows(small, group))
    small.end(first, output=b"{}\n")
    paused = json.loads(small.run("pause", group, "--json").stdout)
    assert [each["x_batchwright"]["paused"] for each in paused["data"]] == [None, True, True]
    assert {(id, "pause") for id in others} <= set(small.api.temporal.signals)
    resumed = small.run("resume", group)
    assert (resumed.exit_code, "Created" in resumed.stderr) == (0, False)
    assert {(id, "resume") for id in others} <= set(small.api.temporal.signals)
    for id in others:
        small.end(id, output=b"{}\n")
    for command, reason in (("pause", "have ended already"), ("resume", "are completed")):
        again = small.run(command, group)
        assert (again.exit_code, reason in again.stderr) == (3, True)


def test_a_group_that_ended_early_is_resumed_once(small: Cli, file: Path) -> None:
    group = submitted(small, file)
    ids = [row.order.batch_id for row in rows(small, group)]
    for id in ids:
        small.end(id, BatchStatus.COMPLETED if id == ids[0] else BatchStatus.CANCELLED, output=b"{}\n")
    resumed = json.loads(small.run("resume", group, "--window", "3h", "--json").stdout)
    new = [batch["id"] for batch in resumed["data"]]
    assert [small.row(id).order.completion_window for id in new] == ["3h", "3h"]
    status = json.loads(small.run("status", group, "--json").stdout)
    assert [batch["id"] for batch in status["data"]] == [ids[0], *new]
    again = json.loads(small.run("resume", group, "--json").stdout)
    assert [batch["id"] for batch in again["data"]] == new


def failed_group(cli: Cli, file: Path) -> tuple[str, list[str]]:
    """Submit a group whose first part completes, and whose others have failed lines. Return all ids."""
    group = submitted(cli, file)
    ids = [row.order.batch_id for row in rows(cli, group)]
    cli.end(ids[0], output=b"{}\n")
    for id, code in ((ids[1], LineCode.REQUEST_TIMEOUT), (ids[2], LineCode.CONNECTION_ERROR)):
        key = cli.api.database.rows.files["default", cli.row(id).order.input_file_id].storage_key
        custom_id = json.loads(cli.api.storage.objects[key].splitlines()[0])["custom_id"]
        line = error_line(request_id(id, 0), custom_id, code, "no")
        cli.end(id, error=line + b"\n", errors_summary=[ErrorCount(code=code, count=1)])
    return group, ids


def test_retry_sends_the_failed_lines_of_all_parts_once(small: Cli, file: Path) -> None:
    group, ids = failed_group(small, file)
    retried = small.run("retry", group, "--json")
    assert retried.exit_code == 0, retried.stderr
    retries = [batch["id"] for batch in json.loads(retried.stdout)["data"]]
    origins = [small.row(id).order.origin for id in retries]
    assert [origin and origin.batch_id for origin in origins] == ids[1:]
    again = small.run("retry", group)
    assert (again.exit_code, all(id in again.stdout for id in retries)) == (0, True)
    assert len(rows(small, group)) == 5
    listed = json.loads(small.run("status", group, "--json").stdout)["data"]
    assert [batch["id"] for batch in listed] == ids


def test_retry_of_a_code_leaves_out_parts_without_it(small: Cli, file: Path) -> None:
    group, ids = failed_group(small, file)
    nothing = small.run("retry", group, "--code", "job_lost")
    assert nothing.exit_code == 3
    assert "Its lines failed with: connection_error, request_timeout." in nothing.stderr
    (retry,) = json.loads(small.run("retry", group, "--code", "request_timeout", "--json").stdout)["data"]
    assert retry["x_batchwright"]["origin"]["batch_id"] == ids[1]


def test_retry_needs_a_group_that_has_ended_with_failed_lines(small: Cli, file: Path) -> None:
    group = submitted(small, file)
    ids = [row.order.batch_id for row in rows(small, group)]
    live = small.run("retry", group)
    assert (live.exit_code, f"{ids[0]} of {group} has not ended" in live.stderr) == (3, True)
    for id in ids:
        small.end(id, output=b"{}\n")
    without = small.run("retry", group)
    assert (without.exit_code, f"No line of {group} failed." in without.stderr) == (3, True)


def test_a_batch_that_is_refused_is_named_and_the_others_are_done(
    small: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, ids = failed_group(small, file)
    send = httpx.Client.send

    def refusing(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        if request.url.path.endswith(f"{ids[1]}/x/retry"):
            return httpx.Response(429, json={"error": {"message": "Too many."}}, request=request)
        return send(client, request, **options)

    with monkeypatch.context() as patch:
        patch.setattr(httpx.Client, "send", refusing)
        refused = small.run("retry", group)
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert f"1 of 2 batches of {group} failed, the others are done. {ids[1]}: Too many." in refused.stderr
    assert len(rows(small, group)) == 4
    assert small.run("retry", group).exit_code == 0
    assert len(rows(small, group)) == 5


def test_a_command_that_loses_the_api_says_how_far_it_is(
    small: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = submitted(small, file)
    ids = [row.order.batch_id for row in rows(small, group)]
    send = httpx.Client.send

    def down(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        if request.url.path.endswith(f"{ids[1]}/x/pause"):
            raise httpx.ConnectError("refused", request=request)
        return send(client, request, **options)

    with monkeypatch.context() as patch:
        patch.setattr(httpx.Client, "send", down)
        lost = small.run("pause", group)
    assert f"Only 1 of the 3 batches of {group} are done, then {ids[1]}: " in lost.stderr
    assert "Repeat the command to continue." in lost.stderr
    assert small.run("pause", group).exit_code == 0


def test_a_part_that_ends_meanwhile_is_no_failure(
    small: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = submitted(small, file)
    ids = [row.order.batch_id for row in rows(small, group)]
    pause = Client.pause

    def late(client: Client, batch_id: str) -> BatchObject:
        if batch_id == ids[1]:
            small.end(batch_id, output=b"{}\n")
        return pause(client, batch_id)

    monkeypatch.setattr(Client, "pause", late)
    paused = small.run("pause", group, "--json")
    assert paused.exit_code == 0, paused.stderr
    assert [each["status"] for each in json.loads(paused.stdout)["data"]][1] == "completed"


def test_delete_removes_the_group_with_its_reruns_and_continues_halfway(
    small: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, ids = failed_group(small, file)
    assert small.run("retry", group).exit_code == 0
    retries = [row.order.batch_id for row in rows(small, group) if row.order.batch_id not in ids]
    live = small.run("delete", group)
    assert (live.exit_code, all(id in live.stderr for id in retries)) == (3, True)
    for id in retries:
        small.end(id, output=b"{}\n")
    delete, count = Client.delete_batch, 0

    def killed(client: Client, batch_id: str, *, keep_files: bool) -> DeletedBatch:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return delete(client, batch_id, keep_files=keep_files)

    with monkeypatch.context() as patch:
        patch.setattr(Client, "delete_batch", killed)
        assert small.run("delete", group).exit_code != 0
    deleted = small.run("delete", group)
    assert (deleted.exit_code, deleted.stderr) == (0, f"Deleted {group} with 3 batches.\n")
    assert rows(small, group) == []
    again = small.run("delete", group)
    assert (again.exit_code, f"There is no group {group}" in again.stderr) == (3, True)
