"""Commands that accept the id of a group: status, results, cancel, pause, resume, retry and delete."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from batchwright.contracts.api_objects.openai import BatchObject, DeletedBatch
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import ErrorCount
from batchwright.contracts.terms import BatchStatus
from batchwright.rules.ids import request_id
from batchwright.rules.results import error_tally
from batchwright.rules.results.output_lines import error_line
from batchwright.starter.client import Client
from tests.unit.starter.cli import Cli
from tests.unit.starter.groups.group_batches import rows, submitted
from tests.unit.starter.test_collect import chat


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


def test_the_error_lines_of_a_group_are_none_if_no_line_of_it_has_failed(small: Cli, file: Path) -> None:
    group = submitted(small, file)
    ids = [row.order.batch_id for row in rows(small, group)]
    for id in ids:
        small.end(id, output=b"{}\n")
    errors = small.run("results", group, "--errors")
    assert (errors.exit_code, errors.stderr) == (0, f"No line of {group} failed.\n")


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


def failed_group(cli: Cli, file: Path, summary: str | None = None) -> tuple[str, list[str]]:
    """Submit a group whose first part completes, and whose others have failed lines. Return all ids.

    `summary` is the code of these lines in the summaries of their batches; None for the codes of the lines.
    """
    group = submitted(cli, file)
    ids = [row.order.batch_id for row in rows(cli, group)]
    cli.end(ids[0], output=b"{}\n")
    for id, code in ((ids[1], LineCode.REQUEST_TIMEOUT), (ids[2], LineCode.CONNECTION_ERROR)):
        key = cli.api.database.rows.files["default", cli.row(id).order.input_file_id].storage_key
        custom_id = json.loads(cli.api.storage.objects[key].splitlines()[0])["custom_id"]
        line = error_line(request_id(id, 0), custom_id, code, "no")
        cli.end(id, error=line + b"\n", errors_summary=[ErrorCount(code=summary or code, count=1)])
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


def test_retry_of_a_code_leaves_out_parts_without_it_even_if_their_summaries_do_not_list_all_codes(
    small: Cli, file: Path
) -> None:
    group, ids = failed_group(small, file, summary=error_tally.OTHER)
    nothing = small.run("retry", group, "--code", "job_lost")
    assert (nothing.exit_code, f"No line of {group} failed with job_lost." in nothing.stderr) == (3, True)
    retried = small.run("retry", group, "--code", "request_timeout", "--json")
    assert retried.exit_code == 0, retried.stderr
    (retry,) = json.loads(retried.stdout)["data"]
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


def test_a_command_that_loses_the_api_names_the_batches_that_were_refused_before(
    small: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = submitted(small, file)
    ids = [row.order.batch_id for row in rows(small, group)]
    send = httpx.Client.send

    def failing(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        if request.url.path.endswith(f"{ids[0]}/x/pause"):
            return httpx.Response(429, json={"error": {"message": "Too many."}}, request=request)
        if request.url.path.endswith(f"{ids[1]}/x/pause"):
            raise httpx.ConnectError("refused", request=request)
        return send(client, request, **options)

    with monkeypatch.context() as patch:
        patch.setattr(httpx.Client, "send", failing)
        lost = small.run("pause", group)
    assert f"Only 0 of the 3 batches of {group} are done, then {ids[1]}: " in lost.stderr
    assert f"Rejected: {ids[0]}: Too many." in lost.stderr


def test_a_command_that_loses_the_api_after_a_conflict_says_how_far_it_is(
    small: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = submitted(small, file)
    ids = [row.order.batch_id for row in rows(small, group)]
    send, is_down = httpx.Client.send, False

    def failing(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        nonlocal is_down
        if is_down:
            raise httpx.ConnectError("refused", request=request)
        if request.url.path.endswith(f"{ids[1]}/x/pause"):
            is_down = True
            return httpx.Response(409, json={"error": {"message": "It has ended."}}, request=request)
        return send(client, request, **options)

    with monkeypatch.context() as patch:
        patch.setattr(httpx.Client, "send", failing)
        lost = small.run("pause", group)
    assert f"Only 1 of the 3 batches of {group} are done, then {ids[1]}: " in lost.stderr
    assert "Repeat the command to continue." in lost.stderr


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
