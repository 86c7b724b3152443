"""`batchwright webhooks`: creates, changes, tests and lists webhooks, and rejects wrong input."""

import json
import re
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from batchwright.database.tables.webhooks.webhook_deliveries import WebhookAttempt
from tests.unit.starter.cli import LINE, Cli, run_now, served

URL = "https://8.8.8.8/hook"  # nothing is sent: there is no worker


@pytest.fixture
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def created(cli: Cli, *options: str) -> dict[str, str]:
    made = cli.run("webhooks", "create", URL, "--json", *options)
    assert made.exit_code == 0, made.stderr
    return json.loads(made.stdout)


def test_a_webhook_is_created_with_a_secret_and_listed_without(cli: Cli) -> None:
    shown = cli.run(
        "webhooks", "create", URL, "--event", "batch.failed", "--description", "mine", "--details"
    )
    assert shown.exit_code == 0
    assert "whsec_" in shown.stdout
    assert "it is not shown again" in shown.stderr
    listed = cli.run("webhooks", "list")
    assert "whsec_" not in listed.stdout
    assert f"enabled  {URL}  batch.failed" in listed.stdout


def test_without_webhooks_the_command_prints_how_to_create_one(cli: Cli) -> None:
    shown = cli.run("webhooks", "list")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "batchwright webhooks create URL" in shown.stderr


def test_a_webhook_is_changed_disabled_enabled_and_deleted(cli: Cli) -> None:
    id = created(cli)["id"]
    changed = cli.run("webhooks", "set", id, "--event", "batch.paused", "--description", "other")
    assert "batch.paused" in changed.stdout
    assert "A user disabled it." in cli.run("webhooks", "disable", id).stdout
    assert "disabled" in cli.run("webhooks", "list").stdout
    assert "enabled" in cli.run("webhooks", "enable", id).stdout
    assert "other" in cli.run("webhooks", "show", id).stdout
    assert cli.run("webhooks", "delete", id).exit_code == 0
    gone = cli.run("webhooks", "show", id)
    assert (gone.exit_code, "No such Webhook object" in gone.stderr) == (3, True)


def test_a_secret_is_replaced(cli: Cli) -> None:
    webhook = created(cli)
    rotated = json.loads(
        cli.run("webhooks", "rotate", webhook["id"], "--overlap-seconds", "0", "--json").stdout
    )
    assert rotated["secret"] not in (None, webhook["secret"])


def test_deliveries_are_listed_and_replayed(cli: Cli) -> None:
    id = created(cli)["id"]
    assert "There is no delivery." in cli.run("webhooks", "deliveries", id).stderr
    assert cli.run("webhooks", "deliveries", id, "--status", "sold").exit_code == 3
    delivery: str = httpx.post(f"{cli.url}/v1/x/webhooks/{id}/test").json()["id"]
    run_now(cli.api.database.webhook_deliveries.give_up("default", delivery, "The endpoint is disabled."))
    listed = cli.run("webhooks", "deliveries", id)
    assert "The endpoint is disabled." in listed.stdout
    assert f"Sending {delivery} again." in cli.run("webhooks", "replay", id, delivery).stderr
    again = cli.run("webhooks", "replay", id, delivery)
    assert (again.exit_code, "pending" in again.stderr) == (3, True)


@pytest.mark.parametrize(("reason", "code"), [("", 0), ("Status 500.", 1)])
def test_a_test_event_prints_the_result_of_its_first_attempt(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, reason: str, code: int
) -> None:
    """A stub of the worker attempts the delivery while the command waits for it."""
    id = created(cli)["id"]
    table = cli.api.database.webhook_deliveries

    def attempt(seconds: float) -> None:
        (delivery,) = cli.api.database.rows.webhook_deliveries.values()
        made = WebhookAttempt(
            at=datetime.now(UTC), seconds=0.5, http_status=500 if reason else 204, reason=reason
        )
        run_now(table.record_attempt(delivery, made, is_last=False, disable_after=timedelta(hours=72)))

    monkeypatch.setattr("batchwright.starter.commands.webhooks.time.sleep", attempt)
    shown = cli.run("webhooks", "test", id, "--event", "batch.failed")
    assert shown.exit_code == code
    assert ("batch.failed" in shown.stdout, reason in shown.stdout) == (True, True)


def test_wrong_input_is_one_sentence(cli: Cli) -> None:
    bad = cli.run("webhooks", "create", "ftp://a.example")
    assert (bad.exit_code, "it must begin with https://" in bad.stderr) == (3, True)
    unknown = cli.run("webhooks", "create", URL, "--event", "batch.sold")
    assert (unknown.exit_code, "Unknown event 'batch.sold'" in unknown.stderr) == (3, True)
    nothing = cli.run("webhooks", "set", created(cli)["id"])
    assert (nothing.exit_code, "There is nothing to change" in nothing.stderr) == (3, True)


def test_a_batch_is_submitted_with_a_webhook_of_its_own_whose_secret_is_shown_once(
    cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "input.jsonl"
    file.write_text(LINE)
    submitted = cli.run("submit", str(file), "--webhook", URL, "--idempotency-key", "k")
    batch_id = submitted.stdout.strip()
    [listed] = json.loads(cli.run("webhooks", "list", "--batch", batch_id, "--json").stdout)["data"]
    assert (listed["url"], listed["batch_id"], listed["secret"]) == (URL, batch_id, None)
    assert re.search(rf"^Webhook {listed['id']}, secret: whsec_\S{{40,}}$", submitted.stderr, re.MULTILINE)
    assert "whsec_" not in cli.run("status", batch_id, "--json").stdout
    repeated = cli.run("submit", str(file), "--webhook", URL, "--idempotency-key", "k", "--json")
    webhook = json.loads(repeated.stdout)["x_batchwright"]["webhook"]
    assert f"{webhook['id']}, secret: {webhook['secret']}" in submitted.stderr
    assert "whsec_" not in repeated.stderr
    refused = cli.run("submit", str(file), "--webhook", "https://10.0.0.1/hook")
    assert (refused.exit_code, "x_batchwright.webhook.url" in refused.stderr) == (3, True)


def test_the_secret_of_the_webhook_of_a_batch_is_still_printed_after_waiting_for_its_end(
    cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "input.jsonl"
    file.write_text(LINE)
    key = ("--webhook", URL, "--idempotency-key", "k", "--json")
    made = json.loads(cli.run("submit", str(file), *key).stdout)
    cli.end(made["id"])
    ended = cli.run("submit", str(file), *key, "--wait", "--interval", "0.05")
    batch = json.loads(ended.stdout)
    assert batch["status"] == "completed"
    assert batch["x_batchwright"]["webhook"] == made["x_batchwright"]["webhook"]
