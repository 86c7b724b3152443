"""`batchwright status`, `list`, `cancel`, `pause`, `resume`, `retry`: batches that exist."""

from typing import Annotated

import typer

from batchwright.contracts.openai import BatchStatus
from starter.client import Client
from starter.commands.watch import follow
from starter.options import BatchId, Interval, Json, Tenant, Url, Wait, connected
from starter.output import Exit, describe, exit_code, listing, print_json, stderr, stdout
from starter.views import Batch

Window = Annotated[
    str | None,
    typer.Option("--window", help="Of a new batch; without it that of the first.", show_default=False),
]


def status(batch_id: BatchId, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show one batch.

    Exits with 0 completed, 1 failed, expired or cancelled, 2 not finished yet.
    """
    with connected(url, tenant) as client:
        batch = client.batch(batch_id)
    _print(batch, json)
    raise typer.Exit(int(exit_code(batch.status)))


def list_batches(
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many.")] = 20,
    after: Annotated[
        str | None, typer.Option(help="Only those older than this batch.", show_default=False)
    ] = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """List batches, newest first."""
    with connected(url, tenant) as client:
        page = client.batches(limit=limit, after=after)
    if json:
        return print_json(page)
    if page.data:
        stdout().print(listing(page.data))
    else:
        stderr().print("There are no batches yet; `batchwright submit FILE` makes one.")
    if page.has_more and page.last_id:
        stderr().print(f"There are more: --after {page.last_id}", style="dim")


def cancel(
    batch_id: BatchId,
    wait: Annotated[
        bool, typer.Option("--wait", help="Stay until it has ended; exit 0 if it was cancelled.")
    ] = False,
    interval: Interval = 1.0,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Cancel a batch; what is settled by then is kept."""
    with connected(url, tenant) as client:
        batch = client.cancel(batch_id)
        if wait:
            batch = follow(client, batch, interval=interval, silent=json)
    _print(batch, json)
    if wait and batch.status is not BatchStatus.CANCELLED:
        raise typer.Exit(int(Exit.FAILED))


def pause(batch_id: BatchId, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Hold a batch back.

    Nothing more of it is sent until it is resumed; its window goes on.
    """
    with connected(url, tenant) as client:
        _print(client.pause(batch_id), json)


def resume(
    batch_id: BatchId,
    window: Window = None,
    wait: Wait = False,
    interval: Interval = 1.0,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Go on with a batch that is paused, or that ended early.

    Of one that was cancelled, expired or failed a new batch is made, once; its output has both's results.
    """
    with connected(url, tenant) as client:
        _follow_new(client, client.resume(batch_id, window), batch_id, wait, interval, json)


def retry(
    batch_id: BatchId,
    window: Window = None,
    wait: Wait = False,
    interval: Interval = 1.0,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Make a batch of the lines that failed.

    Once: a second call answers with the same one.
    """
    with connected(url, tenant) as client:
        _follow_new(client, client.retry(batch_id, window), batch_id, wait, interval, json)


def _follow_new(client: Client, batch: Batch, asked: str, wait: bool, interval: float, json: bool) -> None:
    if batch.id != asked and not json:
        stderr().print(f"Made {batch.id} of {asked}.", style="dim", markup=False)
    if wait:
        batch = follow(client, batch, interval=interval, silent=json)
    _print(batch, json)
    if wait:
        raise typer.Exit(int(exit_code(batch.status)))


def _print(batch: Batch, json: bool) -> None:
    if json:
        print_json(batch)
    else:
        stdout().print(describe(batch))
