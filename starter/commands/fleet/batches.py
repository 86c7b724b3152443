"""`batchwright admin batches`: lists, counts and controls the batches of all tenants, for operators."""

from enum import StrEnum
from typing import Annotated

import typer

from batchwright.contracts.api_objects.operator import (
    BatchCountsObject,
    OperatorBatch,
    PendingObject,
    TenantBatchCounts,
)
from batchwright.contracts.temporal_payloads.batch import MAX_PRIORITY, MIN_PRIORITY, WindowFit
from batchwright.starter.batch_output import batch_table, status_markup, waits_column
from batchwright.starter.commands.fleet import holds
from batchwright.starter.commands.fleet.audit_log import audit_log
from batchwright.starter.operator_client import operator_client
from batchwright.starter.options import BatchId, Json, Tenant, Url, command_group
from batchwright.starter.output import (
    column_table,
    escaped,
    local_timestamp,
    print_json,
    short_timestamp,
    stderr,
    stdout,
)

admin = command_group("Manage batches of all tenants, holds and the audit log.")
batches = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
admin.add_typer(batches, name="batches", help="List and control the batches of all tenants.")
admin.add_typer(audit_log, name="audit-log", help="List and export who changed or destroyed what.")
admin.command("hold")(holds.hold)
admin.command("release")(holds.release)
admin.command("holds")(holds.holds)


class ListedStatus(StrEnum):
    """A status by which batches can be filtered. `live` selects all batches that have not ended."""

    LIVE = "live"
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


@batches.command("list")
def list_batches(
    of: Annotated[
        str | None,
        typer.Option("--of", metavar="TENANT", help="Only those of this tenant.", show_default=False),
    ] = None,
    status: Annotated[
        ListedStatus | None, typer.Option(help="Only those with this status.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Only those with lines for this model.", show_default=False)
    ] = None,
    forecast: Annotated[
        WindowFit | None, typer.Option(help="Only those with this forecast.", show_default=False)
    ] = None,
    custom_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only those with a line with this custom_id.", show_default=False),
    ] = None,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of batches.")] = 20,
    after: Annotated[str | None, typer.Option(help="Start after this batch.", show_default=False)] = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """List batches of all tenants, newest first."""
    query = {
        "tenant": of,
        "status": status,
        "model": model,
        "forecast": forecast,
        "custom_id": custom_id,
        "order": "asc" if oldest else None,
        "limit": str(limit),
        "after": after,
    }
    with operator_client(url, tenant) as client:
        given = {name: value for name, value in query.items() if value is not None}
        page = client.batches(given)
        while page.has_more and page.last_id and not page.data:  # the search has not come to the batch yet
            page = client.batches({**given, "after": page.last_id})
    if json:
        return print_json(page)
    if not page.data:
        return stderr().print("There are no such batches.")
    waits, *cells = waits_column(page.data)
    forecasts = ["forecast"] if any(batch.forecast for batch in page.data) else []
    columns = ("batch", "tenant", "status", *waits, "created", *forecasts, "settled")
    table = column_table(*columns, right=1, whole=["batch", "status", "forecast"])
    for batch, cell in zip(page.data, cells, strict=True):
        counts = batch.request_counts
        window = [batch.forecast.window.value if batch.forecast else ""] if forecasts else []
        created = short_timestamp(batch.created_at)
        settled = f"{counts.settled}/{counts.total}"
        owner, shown_status = escaped(batch.tenant), status_markup(batch)
        table.add_row(batch.id, owner, shown_status, *cell, created, *window, settled)
    stdout().print(table)
    if page.has_more:
        stderr().print(f"There are more: --after {page.last_id}", style="dim", markup=False)


@batches.command("counts")
def counts(json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Count the batches of each tenant.

    Live batches are counted, and batches that ended in the last 24 hours.
    """
    with operator_client(url, tenant) as client:
        found = client.batch_counts()
    if json:
        return print_json(found)
    if not found.tenants:
        return stderr().print("No batch is live, and none has ended in the last 24 hours.")
    table = column_table(
        "tenant", "oldest", "at risk", "late", *found.statuses, right=2 + len(found.statuses)
    )
    for each in found.tenants:
        table.add_row(escaped(each.tenant), *_cells(each, found))
    table.add_row("all", *_cells(found, found))
    stdout().print(table)


def _cells(counts: TenantBatchCounts | BatchCountsObject, total: BatchCountsObject) -> list[str]:
    numbers = [counts.at_risk, counts.late, *(counts.statuses.get(status, 0) for status in total.statuses)]
    return [short_timestamp(counts.oldest_created_at), *map(str, numbers)]


@batches.command("show")
def show(batch_id: BatchId, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show a batch of any tenant."""
    with operator_client(url, tenant) as client:
        _print(client.batch(batch_id), json)


@batches.command("slices")
def slices(batch_id: BatchId, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show the slices of a batch: state, worker and last failure.

    A slice is a group of lines of the batch. Only one worker at a time sends lines of a slice.
    """
    with operator_client(url, tenant) as client:
        found = client.batch_slices(batch_id)
    if json:
        return print_json(found)
    if not found.steps and not found.data:
        return stderr().print("No step of the batch is open.")
    table = column_table(
        "step", "state", "since", "attempts", "worker", "settled", "segments", "last attempt", right=0
    )
    for step in found.steps:
        table.add_row(step.step, *_place(step), "", "", escaped(step.last_failure or ""))
    for each in found.data:
        number = "?" if each.number is None else str(each.number)
        segments = "" if each.segments is None else str(each.segments)
        settled = str(each.completed + each.failed)
        name = escaped(f"{each.model} {number}")
        table.add_row(name, *_place(each), settled, segments, escaped(each.last_failure or ""))
    stdout().print(table)


def _place(step: PendingObject) -> list[str]:
    return [step.state, local_timestamp(step.since)[5:], str(step.attempts), escaped(step.worker or "")]


@batches.command("cancel")
def cancel(batch_id: BatchId, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Cancel a batch of any tenant; results so far are kept."""
    with operator_client(url, tenant) as client:
        _print(client.control_batch(batch_id, "cancel"), json)


@batches.command("pause")
def pause(batch_id: BatchId, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Pause a batch of any tenant.

    While the batch is paused, its lines are not sent. The batch's deadline does not change.
    """
    with operator_client(url, tenant) as client:
        _print(client.control_batch(batch_id, "pause"), json)


@batches.command("resume")
def resume(batch_id: BatchId, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Resume a paused batch of any tenant."""
    with operator_client(url, tenant) as client:
        _print(client.control_batch(batch_id, "resume"), json)


@batches.command("abandon")
def abandon(batch_id: BatchId, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """End a batch whose files cannot be written.

    The batch's results stay in storage. The tenant can therefore resume the batch later.
    """
    with operator_client(url, tenant) as client:
        _print(client.control_batch(batch_id, "abandon"), json)


@batches.command("priority")
def priority(
    batch_id: BatchId,
    value: Annotated[
        int,
        typer.Argument(
            metavar="PRIORITY",
            min=MIN_PRIORITY,
            max=MAX_PRIORITY,
            help=f"{MIN_PRIORITY} to {MAX_PRIORITY}, the most urgent.",
            show_default=False,
        ),
    ],
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Change the priority of a live batch.

    The priority only decides the order among the batches of one tenant.
    """
    with operator_client(url, tenant) as client:
        _print(client.prioritize_batch(batch_id, value), json)


def _print(batch: OperatorBatch, json: bool) -> None:
    if json:
        return print_json(batch)
    table = batch_table(batch)
    table.add_row("tenant", escaped(batch.tenant))
    stdout().print(table)
