"""Commands that show and control existing batches.

They are `batchwright status`, `list`, `cancel`, `pause`, `resume`, `retry` and `delete`.
"""

from datetime import datetime
from typing import Annotated

import typer

from batchwright.contracts.objects.openai import BatchObject
from batchwright.contracts.terms import BatchStatus
from batchwright.starter.batch_groups import batches_exit_code, batches_of, print_batches
from batchwright.starter.client import Client
from batchwright.starter.commands.batches.watch import follow, follow_all
from batchwright.starter.options import (
    BatchId,
    BatchOrGroup,
    Interval,
    Json,
    Tenant,
    Url,
    Wait,
    api_client,
    key_value_pairs,
)
from batchwright.starter.output import (
    ExitCode,
    batch_list_table,
    batch_table,
    exit_code,
    print_json,
    stderr,
    stdout,
    stop,
)

_TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]
Window = Annotated[
    str | None,
    typer.Option(
        "--window", help="Completion window of a new batch. [that of the first]", show_default=False
    ),
]
MaxCost = Annotated[
    str | None,
    typer.Option(
        metavar="AMOUNT", help="Cap on the cost of a new batch. [that of the first]", show_default=False
    ),
]


def status(batch_id: BatchOrGroup, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show one batch.

    Exits with 0 completed, 1 failed, expired or cancelled, 2 not finished yet.
    """
    with api_client(url, tenant) as client:
        batches = batches_of(client, batch_id)
    print_batches(batch_id, batches, json)
    raise typer.Exit(int(batches_exit_code(batches)))


def list_batches(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of batches.")] = 20,
    after: Annotated[
        str | None, typer.Option(help="Only batches older than this one.", show_default=False)
    ] = None,
    status: Annotated[
        BatchStatus | None,
        typer.Option(metavar="STATUS", help="Only batches with this status.", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Only batches with lines of this model.", show_default=False)
    ] = None,
    created_after: Annotated[
        datetime | None,
        typer.Option(
            metavar="TIME", formats=_TIMES, help="Only of this local time or later.", show_default=False
        ),
    ] = None,
    created_before: Annotated[
        datetime | None,
        typer.Option(metavar="TIME", formats=_TIMES, help="Only before this local time.", show_default=False),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Only batches with this pair; repeatable.", show_default=False
        ),
    ] = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """List batches, newest first."""
    pairs = key_value_pairs(metadata, "--metadata") or {}
    filters = {
        "status": status,
        "model": model,
        "created_after": created_after and int(created_after.timestamp()),
        "created_before": created_before and int(created_before.timestamp()),
        **{f"metadata[{key}]": value for key, value in pairs.items()},
    }
    query = {name: value for name, value in filters.items() if value is not None}
    with api_client(url, tenant) as client:
        page = client.batches({"limit": limit, **({"after": after} if after else {}), **query})
    if json:
        return print_json(page)
    if page.data:
        stdout().print(batch_list_table(page.data))
    else:
        empty = "There are no batches yet; `batchwright submit FILE` creates one."
        stderr().print("No batch has all of this; use fewer options." if query else empty)
    if page.has_more and page.last_id:
        stderr().print(f"There are more: --after {page.last_id}", style="dim")


def cancel(
    batch_id: BatchOrGroup,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it has ended; exit 0 if it was cancelled.")
    ] = False,
    interval: Interval = 1.0,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Cancel a batch; results so far are kept.

    Batches of a group that have ended already stay as they are.
    """
    with api_client(url, tenant) as client:
        batches = batches_of(client, batch_id, complete=False)
        if len(batches) == 1:
            batches = [client.cancel(batches[0].id)]
        elif all(each.status.is_terminal for each in batches):
            stop(f"All batches of {batch_id} have ended already.")
        else:
            batches = [each if each.status.is_terminal else client.cancel(each.id) for each in batches]
        if wait:
            batches = follow_all(client, batches, interval=interval, silent=json)
    print_batches(batch_id, batches, json)
    if wait and not any(each.status is BatchStatus.CANCELLED for each in batches):
        raise typer.Exit(int(ExitCode.FAILED))


def pause(batch_id: BatchId, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Pause a batch.

    Its lines are not sent until it is resumed. Its deadline does not change.
    """
    with api_client(url, tenant) as client:
        _print(client.pause(batch_id), json)


def resume(
    batch_id: BatchId,
    window: Window = None,
    max_cost: MaxCost = None,
    wait: Wait = False,
    interval: Interval = 1.0,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Resume a paused batch, or a batch that ended early.

    A cancelled, expired or failed batch can be resumed once: a new batch is created, which keeps the results
    of the first batch.
    """
    with api_client(url, tenant) as client:
        _follow_new(client, client.resume(batch_id, window, max_cost), batch_id, wait, interval, json)


def retry(
    batch_id: BatchId,
    code: Annotated[
        list[str] | None,
        typer.Option(help="Only lines that failed with this code; repeatable.", show_default=False),
    ] = None,
    window: Window = None,
    max_cost: MaxCost = None,
    wait: Wait = False,
    interval: Interval = 1.0,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Create a batch that retries the lines that failed.

    A repeated call returns the same batch.
    """
    with api_client(url, tenant) as client:
        _follow_new(client, client.retry(batch_id, window, code, max_cost), batch_id, wait, interval, json)


def max_cost(
    batch_id: BatchId,
    amount: Annotated[
        str | None,
        typer.Argument(metavar="AMOUNT", help="The new cap; none removes it.", show_default=False),
    ] = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Change the cap on the cost of a batch in progress.

    Once the cap is reached, no more lines are sent.
    """
    with api_client(url, tenant) as client:
        _print(client.change_max_cost(batch_id, amount), json)


def delete(
    batch_id: BatchId,
    keep_files: Annotated[
        bool, typer.Option("--keep-files", help="Keep its output and error files.")
    ] = False,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Delete a batch that has ended, and its files.

    Its dead letters are deleted, too. Its input file stays.
    """
    with api_client(url, tenant) as client:
        deleted = client.delete_batch(batch_id, keep_files=keep_files)
    if json:
        return print_json(deleted)
    stderr().print(f"Deleted {batch_id}.", markup=False)


def _follow_new(
    client: Client, batch: BatchObject, source: str, wait: bool, interval: float, json: bool
) -> None:
    if batch.id != source and not json:
        stderr().print(f"Created {batch.id} from {source}.", style="dim", markup=False)
    if wait:
        batch = follow(client, batch, interval=interval, silent=json)
    _print(batch, json)
    if wait:
        raise typer.Exit(int(exit_code(batch.status)))


def _print(batch: BatchObject, json: bool) -> None:
    if json:
        print_json(batch)
    else:
        stdout().print(batch_table(batch))
