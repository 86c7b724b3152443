"""`batchwright admin audit-log`: lists and exports actions."""

import json
from collections.abc import Generator
from datetime import UTC, datetime

import pytest

from batchwright.contracts.api_objects.audit_log import AuditAction, AuditTargetType
from batchwright.database.tables.operations.audit_log import AuditActor, AuditEntry, AuditTarget
from tests.unit.starter.cli import Cli, run_now, served


@pytest.fixture
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def record_command(cli: Cli) -> str:
    entry = AuditEntry(
        created_at=datetime.now(UTC).replace(microsecond=0),
        actor=AuditActor(source="cli", user="ada", address="bastion"),
        action=AuditAction.KEY_REVOKE,
        target=AuditTarget(type=AuditTargetType.KEY, id="key_1", tenant="red"),
    )
    return run_now(cli.api.database.audit_log.begin(entry))


def test_actions_are_listed_with_actor_target_and_outcome_in_80_columns(cli: Cli) -> None:
    assert cli.run("admin", "audit-log", "list").stderr == "There are no such actions.\n"
    cli.run("admin", "hold", "--of", "red")
    record_command(cli)
    cli.run("dlq", "delete", "batch_req_x")
    rows = cli.run("admin", "audit-log", "list", "--oldest").stdout.splitlines()
    assert rows[0].split() == ["time", "actor", "action", "target", "outcome"]
    assert [row.split()[3:] for row in rows[1:]] == [
        ["hold.set", "hold", "tenant/red", "of", "red", "ok"],
        ["key.revoke", "key", "key_1", "of", "red", "unknown"],
        ["dead_letter.delete", "dead_letter", "batch_req_x", "refused", "404"],
    ]
    assert rows[2].split()[2] == "ada@bastion"
    narrow = cli.run("admin", "audit-log", "list", COLUMNS="80", TTY_COMPATIBLE="1", TERM="dumb").stdout
    assert max(map(len, narrow.splitlines())) <= 80
    page = cli.run("admin", "audit-log", "list", "--limit", "1")
    last = json.loads(cli.run("admin", "audit-log", "list", "--limit", "1", "--json").stdout)["last_id"]
    assert f"There are more: --after {last}" in page.stderr


def test_actions_are_selected_by_options(cli: Cli) -> None:
    cli.run("admin", "hold", "--of", "red")
    id = record_command(cli)
    for options in (
        ["--action", "key.revoke"],
        ["--actor", "ada"],
        ["--target", "key_1"],
        ["--outcome", "unknown"],
        ["--of", "red", "--since", "2026-01-01", "--limit", "1"],
    ):
        found = json.loads(cli.run("admin", "audit-log", "list", "--json", *options).stdout)["data"]
        assert [entry["id"] for entry in found] == [id], options
    assert (
        json.loads(cli.run("admin", "audit-log", "list", "--json", "--until", "2026-01-01").stdout)["data"]
        == []
    )
    assert cli.run("admin", "audit-log", "list", "--action", "dance").exit_code == 3


def test_the_export_prints_one_action_per_line_and_continues(cli: Cli) -> None:
    cli.run("admin", "hold", "--of", "red")
    cli.run("admin", "release", "--of", "red")
    lines = cli.run("admin", "audit-log", "export").stdout.splitlines()
    assert [json.loads(line)["action"] for line in lines] == ["hold.set", "hold.release"]
    after = json.loads(lines[0])["id"]
    assert cli.run("admin", "audit-log", "export", "--after", after).stdout.splitlines() == lines[1:]
    id = record_command(cli)  # may still be running
    assert cli.run("admin", "audit-log", "export").stdout.splitlines() == lines
    assert cli.run("admin", "audit-log", "list", "--oldest", "--after", id).exit_code == 0
    refused = cli.run("admin", "audit-log", "export", "--after", "x")
    assert (refused.exit_code, "No entry" in refused.stderr) == (3, True)


def test_an_export_goes_on_after_an_entry_that_retention_has_deleted_and_says_so(cli: Cli) -> None:
    for tenant in ("red", "blue", "green"):
        cli.run("admin", "hold", "--of", tenant)
    first, second, third = cli.run("admin", "audit-log", "export").stdout.splitlines()
    log = cli.api.database.rows.audit_log
    for line in (first, second):
        del log[json.loads(line)["id"]]
    last = json.loads(first)["id"]
    resumed = cli.run("admin", "audit-log", "export", "--after", last)
    assert (resumed.exit_code, resumed.stdout.splitlines()) == (0, [third])
    assert resumed.stderr == f"Retention has deleted entries after {last}: 1 are missing.\n"
    # Nothing is missing after the second entry.
    complete = cli.run("admin", "audit-log", "export", "--after", json.loads(second)["id"])
    assert (complete.stdout.splitlines(), complete.stderr) == ([third], "")
