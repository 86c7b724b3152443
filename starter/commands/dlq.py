"""`batchwright dlq`: the lines that failed after their last attempt; asked again, or taken off the list."""

from typing import Annotated

import typer
from rich.table import Table

from starter.client import Client
from starter.operator_views import Letter, LetterPage, Retried, RetriedPage
from starter.options import Json, Tenant, Url, connected
from starter.output import Exit, moment, print_json, stderr, stdout
from starter.tables import columns, plain

dlq = typer.Typer(
    help="Show, retry and delete lines that failed for good.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_Letter = Annotated[
    str, typer.Argument(metavar="ID", help="The letter's id, batch_req_...", show_default=False)
]
_Of = Annotated[
    str | None, typer.Option("--of", metavar="TENANT", help="Of this tenant.", show_default=False)
]
_Batch = Annotated[
    str | None, typer.Option("--batch", metavar="ID", help="Of this batch.", show_default=False)
]
_Window = Annotated[
    str | None,
    typer.Option("--window", help="Completion window; without it the first batch's.", show_default=False),
]


@dlq.command("list")
def list_letters(
    of: _Of = None,
    batch: _Batch = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="How many.")] = 20,
    after: Annotated[
        str | None, typer.Option("--after", help="Go on behind this letter.", show_default=False)
    ] = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """List dead letters, the latest first."""
    with connected(url, tenant) as client:
        page = client.dead_letters(tenant=of, batch_id=batch, limit=limit, after=after)
    if json:
        return print_json(page)
    if not page.data:
        which = " ".join(f"of {name}" for name in (of, batch) if name)
        return stderr().print(f"There are no dead letters{f' {which}' if which else ''}.", markup=False)
    stdout().print(_table(page))
    if page.has_more:
        stderr().print(f"There are more: --after {page.last_id}", style="dim", markup=False)


@dlq.command("retry")
def retry(
    letter: _Letter, window: _Window = None, json: Json = False, url: Url = None, tenant: Tenant = None
) -> None:
    """Make a batch of one letter's line.

    Once: a second call names the batch that was made.
    """
    with connected(url, tenant) as client:
        made = client.retry_letter(letter, window)
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
    """Make a batch of each batch's letters that none asks again yet.

    Exits with 1 if some could not be made.
    """
    with connected(url, tenant) as client:
        found = _all_pages(client, of, batch, window)
    if json:
        print_json(RetriedPage(data=found))
    elif not found:
        stderr().print("There is nothing to retry.")
    else:
        for made in found:
            if made.batch_id is not None:
                stdout().print(made.batch_id)
            else:
                stderr().print(f"{made.origin}: {made.refused}", markup=False)
    if any(made.batch_id is None for made in found):
        raise typer.Exit(Exit.FAILED)


@dlq.command("delete")
def delete(letter: _Letter, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Take a letter off the list.

    The line stays in the error file of its batch.
    """
    with connected(url, tenant) as client:
        deleted = client.delete_letter(letter)
    if json:
        return print_json(deleted)
    stderr().print(f"Deleted {letter}.", markup=False)


def _all_pages(client: Client, of: str | None, batch: str | None, window: str | None) -> list[Retried]:
    found: list[Retried] = []
    after: str | None = None
    while True:
        page = client.retry_letters(tenant=of, batch_id=batch, window=window, after=after)
        found += page.data
        if not page.has_more or page.last_id == after:
            return found
        after = page.last_id


def _table(page: LetterPage) -> Table:
    table = columns("letter", "line", "model", "attempts", "failed", "error")
    table.columns[3].justify = "right"
    for letter in page.data:
        table.add_row(
            letter.id,
            plain(letter.custom_id),
            plain(letter.model),
            str(letter.attempts),
            moment(letter.failed_at)[5:16],
            plain(_why(letter)),
        )
    return table


def _why(letter: Letter) -> str:
    code = letter.error.code or f"HTTP {letter.error.status_code}"
    retried = f" (retried as {letter.retried_as})" if letter.retried_as else ""
    return f"{code}: {letter.error.message}{retried}"
