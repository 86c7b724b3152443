"""`batchwright webhooks`: creates, changes and tests webhook endpoints, and lists and replays deliveries."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table

from batchwright.contracts.api_objects.webhooks import DeliveryObject, WebhookObject
from batchwright.starter.options import Json, Tenant, Url, api_client, command_group, id_argument
from batchwright.starter.output import (
    ExitCode,
    column_table,
    escaped,
    local_time,
    local_timestamp,
    print_json,
    property_table,
    short_timestamp,
    stderr,
    stdout,
    stop,
)
from batchwright.starter.webhook_client import WebhookClient

_TEST_SECONDS = 30.0
_POLL_SECONDS = 0.25
_LIMIT = 20
_MAX_LIMIT = 100
webhooks = command_group("Create and change webhooks, test them, list deliveries.")
Id = Annotated[
    str,
    id_argument("webhook", "webhook_...", "webhooks list"),
]
Events = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        metavar="EVENT",
        help="Event to receive, such as batch.completed; repeatable.",
        show_default=False,
    ),
]
Description = Annotated[
    str | None, typer.Option("--description", help="What it is for, in your words.", show_default=False)
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=_MAX_LIMIT, help="Number of rows.")]


@webhooks.callback()
def commands() -> None:
    """Create and change webhooks, test them, list deliveries."""


@webhooks.command("create")
def create(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="URL that receives events.", show_default=False)
    ],
    event: Events = None,
    description: Description = None,
    details: Annotated[bool, typer.Option("--details", help="Send more about the batch.")] = False,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Create a webhook, and print its secret. The secret is not shown again."""
    body: dict[str, object] = {"url": address, "details": details}
    body |= {"events": event} if event else {}
    body |= {} if description is None else {"description": description}
    with _client(url, tenant) as client:
        _print_webhook(client.create(body), json)


@webhooks.command("list")
def list_webhooks(
    batch: Annotated[
        str | None,
        typer.Option("--batch", metavar="ID", help="The webhook of this batch.", show_default=False),
    ] = None,
    limit: Limit = _LIMIT,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """List webhooks, newest first."""
    query: dict[str, str | int] = {"limit": limit}
    query |= {} if batch is None else {"batch_id": batch}
    with _client(url, tenant) as client:
        page = client.page(query)
    if json:
        return print_json(page)
    if not page.data:
        stderr().print("There is no webhook; `batchwright webhooks create URL` creates one.")
        return
    table = column_table("id", "state", "url", "events", whole=["id"])
    for one in page.data:
        table.add_row(one.id, _state(one), escaped(one.url), ", ".join(one.events))
    stdout().print(table)


@webhooks.command("show")
def show(id: Id, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show a webhook, without its secret."""
    with _client(url, tenant) as client:
        _print_webhook(client.get(id), json)


@webhooks.command("set")
def change(
    id: Id,
    address: Annotated[
        str | None, typer.Option("--address", help="URL that receives events.", show_default=False)
    ] = None,
    event: Events = None,
    description: Description = None,
    details: Annotated[
        bool | None,
        typer.Option("--details/--no-details", help="Send more about the batch.", show_default=False),
    ] = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Change some properties of a webhook, and keep all others."""
    given = {"url": address, "events": event or None, "description": description, "details": details}
    changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if not changes:
        stop("There is nothing to change: give at least one option, such as --event batch.failed.")
    with _client(url, tenant) as client:
        _print_webhook(client.change(id, changes), json)


@webhooks.command("enable")
def enable(id: Id, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Enable a webhook.

    You can also use this for a webhook that was disabled automatically after failures.
    """
    with _client(url, tenant) as client:
        _print_webhook(client.change(id, {"enabled": True}), json)


@webhooks.command("disable")
def disable(id: Id, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Disable a webhook. Events that happen while it is disabled are never sent."""
    with _client(url, tenant) as client:
        _print_webhook(client.change(id, {"enabled": False}), json)


@webhooks.command("delete")
def delete(id: Id, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Delete a webhook and its deliveries."""
    with _client(url, tenant) as client:
        deleted = client.delete(id)
    if json:
        return print_json(deleted)
    stderr().print(f"Deleted {deleted.id}.", markup=False)


@webhooks.command("rotate")
def rotate(
    id: Id,
    overlap: Annotated[
        int,
        typer.Option("--overlap-seconds", min=0, help="How long the replaced secret signs, too."),
    ] = 86_400,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Replace the secret of a webhook, and print the new secret."""
    with _client(url, tenant) as client:
        _print_webhook(client.rotate(id, overlap), json)


@webhooks.command("test")
def send_test(
    id: Id,
    event: Annotated[
        str | None, typer.Option("--event", help="Event to send; by default its first.", show_default=False)
    ] = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Send a test event, and print the result of the first attempt.

    If the event was not delivered, the exit code is 1.
    """
    with _client(url, tenant) as client:
        delivery = _attempted(client, id, client.test(id, event))
    if json:
        print_json(delivery)
    else:
        stdout().print(_deliveries_table([delivery]))
    if delivery.status != "delivered":
        raise typer.Exit(int(ExitCode.FAILED))


@webhooks.command("deliveries")
def deliveries(
    id: Id,
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            metavar="pending|delivered|failed",
            help="Only deliveries in this state.",
            show_default=False,
        ),
    ] = None,
    limit: Limit = _LIMIT,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """List deliveries and their last attempts, newest first."""
    query: dict[str, str | int] = {"limit": limit}
    query |= {} if status is None else {"status": status}
    with _client(url, tenant) as client:
        page = client.deliveries(id, query)
    if json:
        return print_json(page)
    if not page.data:
        stderr().print("There is no delivery.")
        return
    stdout().print(_deliveries_table(page.data))


@webhooks.command("replay")
def replay(
    id: Id,
    delivery: Annotated[
        str,
        id_argument("delivery", "wh_...", "webhooks deliveries ID", "DELIVERY"),
    ],
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Send the event of an ended delivery again."""
    with _client(url, tenant) as client:
        replayed = client.replay(id, delivery)
    if json:
        return print_json(replayed)
    stderr().print(f"Sending {replayed.id} again.", markup=False)


@contextmanager
def _client(url: str | None, tenant: str | None) -> Generator[WebhookClient]:
    with api_client(url, tenant) as client:
        yield WebhookClient(client)


def _attempted(client: WebhookClient, id: str, delivery: DeliveryObject) -> DeliveryObject:
    """Wait until the first attempt of a new delivery is recorded, but not longer than 30 s.

    Return the delivery in its latest state.

    Args:
        id: id of the webhook.
    """
    end = time.monotonic() + _TEST_SECONDS
    while not delivery.attempts and delivery.status == "pending" and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        delivery = client.delivery(id, delivery.id)
    return delivery


def _state(webhook: WebhookObject) -> str:
    if not webhook.enabled:
        return "disabled"
    return "enabled" if webhook.failing_since is None else "failing"


def _print_webhook(webhook: WebhookObject, json: bool) -> None:
    if json:
        return print_json(webhook)
    facts = [
        ("webhook", webhook.id),
        ("url", escaped(webhook.url)),
        ("events", ", ".join(webhook.events)),
        ("batch", webhook.batch_id or ""),
        ("description", escaped(webhook.description)),
        ("details", "sent" if webhook.details else ""),
        ("state", _state(webhook)),
        ("disabled", local_timestamp(webhook.disabled_at)),
        ("reason", escaped(webhook.disabled_reason or "")),
        ("failing since", local_timestamp(webhook.failing_since)),
        ("created", local_timestamp(webhook.created_at)),
        ("old secret until", local_timestamp(webhook.previous_secret_expires_at)),
        ("secret", webhook.secret or ""),
    ]
    table = property_table()
    for name, value in facts:
        if value:
            table.add_row(name, value)
    stdout().print(table)
    if webhook.secret:
        stderr().print("Keep the secret: it is not shown again.")


def _deliveries_table(rows: list[DeliveryObject]) -> Table:
    next_attempt = ["next attempt"] if any(row.next_attempt_at for row in rows) else []  # the table is wide
    table = column_table(
        *("delivery", "event", "batch", "state", "attempts", "last attempt", "status", "ms"),
        *next_attempt,
        "reason",
        whole=["delivery"],
    )
    for row in rows:
        last = row.attempts[-1] if row.attempts else None
        table.add_row(
            row.id,
            row.type,
            row.batch_id,
            row.status,
            str(row.attempt_count),
            "" if last is None else local_time(datetime.fromtimestamp(last.at, UTC)),
            "" if last is None or last.status is None else str(last.status),
            "" if last is None else f"{last.latency_seconds * 1000:.0f}",
            *(short_timestamp(row.next_attempt_at) for _ in next_attempt),
            escaped(row.reason or (last.reason if last is not None and last.reason else "")),
        )
    return table
