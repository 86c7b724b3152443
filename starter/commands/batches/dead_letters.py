"""`batchwright dlq`: lists, retries and deletes dead letters (lines that used up their attempts)."""

from typing import Annotated

import typer

from batchwright.contracts.api_objects.operator import DeadLetterRetryPage
from batchwright.starter.operator_client import operator_client
from batchwright.starter.options import Json, Tenant, Url, command_group, id_argument
from batchwright.starter.output import (
    ExitCode,
    column_table,
    escaped,
    print_json,
    short_timestamp,
    stderr,
    stdout,
)

dlq = command_group("List, retry and delete dead letters.")
_DeadLetterId = Annotated[
    str,
    id_argument("dead letter", "batch_req_...", "dlq list"),
]
_Of = Annotated[
    str | None, typer.Option("--of", metavar="TENANT", help="Only those of this tenant.", show_default=False)
]
_Batch = Annotated[
    str | None, typer.Option("--batch", metavar="ID", help="Only those of this batch.", show_default=False)
]
_Window = Annotated[
    str | None,
    typer.Option("--window", help="Completion window. [that of the first batch]", show_default=False),
]


@dlq.command("list")
def list_dead_letters(
    of: _Of = None,
    batch: _Batch = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="Number of dead letters.")] = 20,
    after: Annotated[
        str | None, typer.Option("--after", help="Start after this dead letter.", show_default=False)
    ] = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """List dead letters, newest first."""
    with operator_client(url, tenant) as client:
        page = client.dead_letters(tenant=of, batch_id=batch, limit=limit, after=after)
    if json:
        return print_json(page)
    if not page.data:
        which = " ".join(f"of {name}" for name in (of, batch) if name)
        return stderr().print(f"There are no dead letters{f' {which}' if which else ''}.", markup=False)
    table = column_table("letter", "line", "model", "attempts", "failed", "error")
    table.columns[3].justify = "right"
    for letter in page.data:
        code = letter.error.code or f"HTTP {letter.error.status_code}"
        retried = f" (retried as {letter.retried_as})" if letter.retried_as else ""
        table.add_row(
            letter.id,
            escaped(letter.custom_id),
            escaped(letter.model),
            str(letter.attempts),
            short_timestamp(letter.failed_at),
            escaped(f"{code}: {letter.error.message}{retried}"),
        )
    stdout().print(table)
    if page.has_more:
        stderr().print(f"There are more: --after {page.last_id}", style="dim", markup=False)


@dlq.command("retry")
def retry(
    letter: _DeadLetterId, window: _Window = None, json: Json = False, url: Url = None, tenant: Tenant = None
) -> None:
    """Create a batch that retries one dead letter.

    If you repeat the command, it prints the same batch.
    """
    with operator_client(url, tenant) as client:
        made = client.retry_dead_letter(letter, window)
    if json:
        return print_json(made)
    stdout().print(made.id)


@dlq.command("retry-all")
def retry_all(
    of: _Of = None,
    batch: _Batch = None,
    window: _Window = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Retry dead letters (lines that failed for good). Each ended batch with dead letters gets a new batch.

    Dead letters that were already retried are left out. Exits with 1 if a batch could not be created.
    """
    with operator_client(url, tenant) as client:
        page = client.retry_dead_letters(tenant=of, batch_id=batch, window=window, after=None)
        found, last_id = page.data, None
        while page.has_more and page.last_id != last_id:
            last_id = page.last_id
            page = client.retry_dead_letters(tenant=of, batch_id=batch, window=window, after=last_id)
            found += page.data
    if json:
        print_json(DeadLetterRetryPage(data=found, last_id=page.last_id, has_more=page.has_more))
    elif not found:
        stderr().print("There is nothing to retry.")
    else:
        for made in found:
            if made.batch_id is not None:
                stdout().print(made.batch_id)
            else:
                stderr().print(f"{made.origin}: {made.refused}", markup=False)
    if any(made.batch_id is None for made in found):
        raise typer.Exit(ExitCode.FAILED)


@dlq.command("delete")
def delete(letter: _DeadLetterId, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Delete a dead letter.

    The line stays in the error file of its batch.
    """
    with operator_client(url, tenant) as client:
        deleted = client.delete_dead_letter(letter)
    if json:
        return print_json(deleted)
    stderr().print(f"Deleted {letter}.", markup=False)
