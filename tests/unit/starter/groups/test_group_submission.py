"""Inputs that are too large for one batch: `submit` makes a group of batches."""

import gzip
from pathlib import Path
from typing import Any

import httpx
import pytest

from batchwright.rules.input.oversized_input import PartLimits
from batchwright.starter.client import Client
from tests.unit.starter.cli import LINE, Cli
from tests.unit.starter.groups.group_batches import contents, rows, submitted


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
    """If a newer command has a new option, the ids stay the same. So it finds the groups of an
    older command.
    """
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
    """The API has handled the request, but the command is killed before it gets the response."""
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
