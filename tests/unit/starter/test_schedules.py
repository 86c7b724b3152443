"""`batchwright schedules`, and `batchwright submit --start-at`."""

import json
import time
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from batchwright.database.tables.schedules import ScheduleRunRow
from tests.unit.starter.cli import LATER, LINE, Cli, run_now, served


@pytest.fixture
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    return str(path)


def created(cli: Cli, file: str, *options: str) -> str:
    """Create a schedule, and return its id."""
    made = cli.run("schedules", "create", file, "--cron", "0 2 * * *", "--json", *options)
    assert made.exit_code == 0, made.stderr
    return json.loads(made.stdout)["id"]


def test_a_schedule_is_created_from_a_file_and_shown_with_its_next_time(cli: Cli, file: str) -> None:
    options = ("--time-zone", "Europe/Berlin", "--overlap", "buffer_one", "--metadata", "run=nightly")
    made = cli.run("schedules", "create", file, "--cron", "0 2 * * *", "--window", "6h", *options)
    assert made.exit_code == 0
    for text in ("active", "0 2 * * *", "Europe/Berlin", "buffer_one", "run=nightly", "6h", "next"):
        assert text in made.stdout
    (row,) = cli.api.database.rows.schedules.values()
    assert ("default", row.template.input_file_id) in cli.api.database.rows.files


def test_a_schedule_can_use_a_file_that_was_uploaded_before(cli: Cli, file: str) -> None:
    created(cli, file)
    (first,) = cli.api.database.rows.schedules.values()
    created(cli, first.template.input_file_id, "--priority", "5", "--max-cost", "2", "--deduplicate")
    assert len(cli.api.database.rows.files) == 1
    template = list(cli.api.database.rows.schedules.values())[1].template
    assert (template.priority, template.max_cost, template.deduplicate) == (5, "2", True)


def test_an_object_in_a_bucket_is_not_uploaded(cli: Cli) -> None:
    refused = cli.run("schedules", "create", "s3://inputs/a.jsonl", "--cron", "0 2 * * *")
    assert refused.exit_code == 3
    assert "may not read from 's3://inputs/a.jsonl'" in refused.output


def test_a_file_is_not_kept_for_a_schedule_that_is_refused(cli: Cli, file: str) -> None:
    refused = cli.run("schedules", "create", file, "--cron", "daily")
    assert (refused.exit_code, "expected five fields" in refused.stderr) == (3, True)
    assert cli.api.database.rows.files == {}


def test_schedules_are_listed_with_their_last_runs(cli: Cli, file: str) -> None:
    nothing = cli.run("schedules", "list")
    assert (nothing.exit_code, "batchwright schedules create" in nothing.stderr) == (0, True)
    id = created(cli, file)
    due = datetime(2026, 12, 1, 2, tzinfo=UTC)
    runs = [
        ScheduleRunRow(id="1", scheduled_at=due, batch_id="batch_1"),
        ScheduleRunRow(id="2", scheduled_at=due + timedelta(days=1), code="x", message="It was deleted."),
    ]
    for run in runs:
        run_now(cli.api.database.schedules.record_run("default", id, run))
    listed = cli.run("schedules", "list").stdout
    assert id in listed
    assert "not created: It was deleted." in listed
    shown = cli.run("schedules", "show", id).stdout
    assert f"{due.astimezone():%Y-%m-%d %H:%M:%S %Z}  batch_1" in shown
    assert "not created: It was deleted." in shown


def test_the_next_times_of_a_schedule_name_the_local_zone(cli: Cli, file: str) -> None:
    shown = cli.run("schedules", "show", created(cli, file, "--time-zone", "Europe/Berlin")).stdout
    (first, *_) = [line.split()[1:] for line in shown.splitlines() if line.startswith("next")]
    at = datetime.fromisoformat(f"{first[0]}T{first[1]}").astimezone()
    assert first[2] == at.tzname()


def test_a_schedule_is_changed_paused_resumed_triggered_and_deleted(cli: Cli, file: str) -> None:
    id = created(cli, file)
    assert "0 5 * * *" in cli.run("schedules", "set", id, "--cron", "0 5 * * *").stdout
    assert cli.run("schedules", "set", id).exit_code == 3
    assert "paused" in cli.run("schedules", "pause", id).stdout
    assert "active" in cli.run("schedules", "resume", id).stdout
    assert cli.run("schedules", "trigger", id).exit_code == 0
    assert cli.api.schedules.stored[id].triggers == 1
    assert id in cli.run("schedules", "delete", id).stderr
    gone = cli.run("schedules", "show", id)
    assert (gone.exit_code, "No such Schedule object" in gone.stderr) == (3, True)


@pytest.mark.parametrize("text", [LATER.isoformat(), "2026-03-05T00:00:00Z"])
def test_a_start_far_ahead_or_in_the_past_is_refused(cli: Cli, file: str, text: str) -> None:
    refused = cli.run("submit", file, "--start-at", text)
    assert refused.exit_code == 3
    assert "x_batchwright.start_at" in refused.stderr
    assert cli.api.database.rows.batches == {}


def test_a_batch_is_submitted_to_start_later(cli: Cli, tmp_path: Path) -> None:
    start = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0)
    for text in (start.isoformat(), str(int(start.timestamp()))):
        row = cli.submitted(tmp_path, "--start-at", text)
        assert row.order.start_at == start
        shown = cli.run("status", row.order.batch_id).stdout
        assert "starts" in shown
        assert "scheduled" in shown


def test_the_next_time_in_the_list_has_the_name_of_its_zone(cli: Cli, file: str) -> None:
    id = created(cli, file, "--time-zone", "Europe/Berlin")
    (row,) = (line for line in cli.run("schedules", "list").stdout.splitlines() if line.startswith(id))
    assert time.localtime().tm_zone in row
