"""`batchwright admin batches`: lists, counts and controls the batches of all tenants."""

import json
import re
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batchwright.contracts.temporal_names import CONTROL_QUEUE, IO_QUEUE, model_run_id
from batchwright.contracts.temporal_payloads.batch import ModelCounts, WindowFit
from batchwright.contracts.temporal_payloads.ingestion import IngestResult, ModelShare
from batchwright.contracts.terms import ActivityState, BatchStatus, Usage
from batchwright.database.records import BatchOutcome
from batchwright.database.tables.batches.waiting_reasons import WaitingSource
from batchwright.rules.worker_stats import polled_queue_stats
from batchwright.temporal.pending_activities import PendingActivity
from tests.fakes.tables.batches.custom_ids import part_of
from tests.unit.starter.cli import LATER, LISTING, Cli, run_now, served

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


@pytest.fixture
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def created(cli: Cli, tenant: str) -> str:
    """Create a batch of a tenant, and return its id."""
    return run_now(cli.api.create(tenant)).id


def listed(cli: Cli, *options: str) -> list[str]:
    page = json.loads(cli.run("admin", "batches", "list", "--json", *options).stdout)
    return [batch["id"] for batch in page["data"]]


def test_an_empty_list_is_reported(cli: Cli) -> None:
    shown = cli.run("admin", "batches", "list")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "", "There are no such batches.\n")
    assert "No batch is live" in cli.run("admin", "batches", "counts").stderr


def test_batches_of_all_tenants_are_listed_with_their_tenants(cli: Cli) -> None:
    red, blue = created(cli, "red"), created(cli, "blue")
    rows = cli.run("admin", "batches", "list", COLUMNS="200").stdout.splitlines()
    assert [row.split()[:3] for row in rows[1:]] == [[blue, "blue", "validating"], [red, "red", "validating"]]


def test_the_list_has_a_column_with_reasons_only_if_a_batch_waits(cli: Cli, tmp_path: Path) -> None:
    stats = polled_queue_stats([CONTROL_QUEUE, IO_QUEUE])
    run_now(cli.api.database.workers.record_heartbeat("one:1", stats))
    row = cli.submitted(tmp_path)
    cli.waits(row, "", "paused", WaitingSource.USER)
    header, line = cli.run("admin", "batches", "list", COLUMNS="200").stdout.splitlines()
    assert "waits" not in header
    assert "validating, paused" in line
    for model in ("llama", "qwen"):
        cli.waits(row, model, "rate [limited]", WaitingSource.WORKER)
    header, line = cli.run("admin", "batches", "list", COLUMNS="200").stdout.splitlines()
    assert "waits" in header
    assert "llama: rate [limited]; 1 more" in line


def test_the_list_has_a_column_with_forecasts_only_if_a_batch_has_one(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    header, line = cli.run("admin", "batches", "list").stdout.splitlines()
    assert "forecast" not in header
    assert line.endswith("0/0")
    cli.begin(row, ModelCounts(model="llama", lines=1))
    cli.forecast(row, WindowFit.LATE)
    header, line = cli.run("admin", "batches", "list").stdout.splitlines()
    assert "forecast" in header
    assert line.split()[-2:] == ["late", "0/1"]


def test_filters_and_cursor_are_sent_to_the_api(cli: Cli) -> None:
    red, blue = created(cli, "red"), created(cli, "blue")
    assert listed(cli, "--of", "red") == [red]
    assert listed(cli, "--status", "live", "--oldest") == [red, blue]
    assert listed(cli, "--status", "completed") == []
    assert listed(cli, "--model", "llama") == []
    assert listed(cli, "--forecast", "late") == []
    assert listed(cli, "--after", blue) == [red]
    run_now(cli.api.database.custom_ids.store("red", red, 0, part_of("a")))
    assert run_now(cli.api.database.batches.start("red", red, total=1, models=[], at=LATER))
    assert listed(cli, "--custom-id", "a") == [red]
    assert listed(cli, "--custom-id", "b") == []
    assert f"There are more: --after {blue}" in cli.run("admin", "batches", "list", "--limit", "1").stderr


def test_counts_have_a_row_for_each_tenant_and_one_for_all(cli: Cli) -> None:
    for tenant in ("red", "blue", "red"):
        created(cli, tenant)
    shown = cli.run("admin", "batches", "counts", COLUMNS="200").stdout.splitlines()
    rows = [row.split() for row in shown]
    assert rows[0] == ["tenant", "oldest", "at", "risk", "late", "validating"]
    assert [(row[0], row[-3:]) for row in rows[1:]] == [
        ("blue", ["0", "0", "1"]),
        ("red", ["0", "0", "2"]),
        ("all", ["0", "0", "3"]),
    ]


def test_a_batch_of_any_tenant_is_shown_paused_resumed_and_cancelled(cli: Cli) -> None:
    red = created(cli, "red")
    assert re.search(r"^tenant +red *$", cli.run("admin", "batches", "show", red).stdout, flags=re.MULTILINE)
    for action, status in (
        ("pause", "validating, paused"),
        ("resume", "validating"),
        ("cancel", "cancelling"),
    ):
        shown = cli.run("admin", "batches", action, red).stdout
        assert re.search(rf"^status +{status} *$", shown, flags=re.MULTILINE)
    assert cli.api.temporal.signals == [(red, "pause"), (red, "resume"), (red, "cancel")]


def test_a_batch_that_has_ended_is_refused_with_the_reason(cli: Cli) -> None:
    red = created(cli, "red")
    outcome = BatchOutcome(status=BatchStatus.COMPLETED, completed=1, failed=0, usage=Usage())
    run_now(cli.api.database.batch_ends.finish("red", red, outcome, LATER))
    refused = cli.run("admin", "batches", "pause", red)
    assert refused.exit_code == 3
    assert "Cannot pause a batch with status 'completed'." in refused.stderr


def test_every_option_is_documented_and_no_other(cli: Cli) -> None:
    commands = ("list", "counts", "show", "cancel", "pause", "resume", "priority", "abandon", "slices")
    shown = "".join(cli.run("admin", "batches", command, "--help").stdout for command in commands)
    shown += "".join(cli.run("admin", command, "--help").stdout for command in ("hold", "release", "holds"))
    for command in ("list", "export"):
        shown += cli.run("admin", "audit-log", command, "--help").stdout
    page = (REFERENCE / "cli.md").read_text().split("\n## admin\n")[1].split("\n## ")[0]
    assert _options(page) == _options(shown)


def _options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - {"--help"}


def test_the_priority_of_a_batch_is_changed(cli: Cli) -> None:
    red = created(cli, "red")
    assert re.search(r"priority +5", cli.run("admin", "batches", "priority", red, "5").stdout)
    assert cli.run("admin", "batches", "priority", red, "6").exit_code == 3


def test_a_tenant_and_a_model_are_held_and_released(cli: Cli) -> None:
    assert cli.run("admin", "holds").stderr == "No tenant and no model is held.\n"
    cli.run("admin", "hold", "--of", "red")
    shown = cli.run("admin", "hold", "--model", "llama").stdout.splitlines()
    assert [row.split()[0] for row in shown[1:]] == ["llama", "red"]
    left = json.loads(cli.run("admin", "release", "--of", "red", "--json").stdout)
    assert [each["model"] for each in left["data"]] == ["llama"]
    cli.run("admin", "release", "--model", "llama")
    for options in ((), ("--of", "red", "--model", "llama")):
        refused = cli.run("admin", "hold", *options)
        assert (refused.exit_code, "Name either a tenant" in refused.stderr) == (3, True)


def test_a_held_model_that_no_backend_serves_is_named_in_a_warning(cli: Cli) -> None:
    held = cli.run("admin", "hold", "--model", "lama")
    assert (held.exit_code, "lama" in held.stdout) == (0, True)
    assert held.stderr.startswith("No backend serves lama now. Check the name:")
    cli.run("admin", "release", "--model", "lama")
    run_now(cli.api.database.models.replace_models(LISTING, ["llama"], datetime.now(UTC)))
    assert cli.run("admin", "hold", "--model", "llama").stderr == ""
    cli.run("admin", "release", "--model", "llama")


def test_releasing_what_is_not_held_is_reported(cli: Cli) -> None:
    cli.run("admin", "hold", "--of", "red")
    typo = cli.run("admin", "release", "--of", "rad")
    assert "The tenant rad was not held, so there is nothing to release." in typo.stderr
    assert "red" in typo.stdout
    assert "was not held" not in cli.run("admin", "release", "--of", "red").stderr
    again = cli.run("admin", "release", "--model", "llama")
    assert "The model llama was not held" in again.stderr


def test_a_batch_that_is_not_finalizing_is_not_abandoned(cli: Cli) -> None:
    refused = cli.run("admin", "batches", "abandon", created(cli, "red"))
    assert (refused.exit_code, "they are not being written. Cancel it" in refused.stderr) == (3, True)


def test_slices_are_a_table_with_the_reason_of_the_last_end(cli: Cli) -> None:
    red = created(cli, "red")
    assert cli.run("admin", "batches", "slices", red).stderr == "No step of the batch is open.\n"
    share = ModelShare(model="org/llama", safe_model="llama", lines=9, slices=1)
    cli.api.temporal.ingestions[red] = IngestResult(ingest_prefix="p", models=[share], total=9)
    place = ("inference.llama", "pod-1", LATER, 2, LATER, None, "the backend accepts no requests now")
    step = PendingActivity("run_slice", 4, ActivityState.RUNNING, *place)
    cli.api.temporal.activities[model_run_id(red, "llama")] = [step]
    rows = cli.run("admin", "batches", "slices", red, COLUMNS="200").stdout.splitlines()
    assert re.fullmatch(
        r"org/llama 4 +running +\S+ \S+ +2 +pod-1 +0 +0 +the backend accepts no requests now *", rows[1]
    )
    shown = json.loads(cli.run("admin", "batches", "slices", red, "--json").stdout)
    assert [each["number"] for each in shown["data"]] == [4]
