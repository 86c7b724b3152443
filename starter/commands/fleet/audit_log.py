"""`batchwright admin audit-log`: lists and exports the audit log, which records who changed what."""

import sys
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from inspect import Signature, signature
from typing import Annotated, cast

import typer

from batchwright.contracts.api_objects.audit_log import AuditAction, AuditEntryObject, AuditOutcome
from batchwright.starter.operator_client import operator_client
from batchwright.starter.options import Json, Tenant, Url
from batchwright.starter.output import (
    column_table,
    escaped,
    local_timestamp,
    print_json,
    stderr,
    stdout,
)

audit_log = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_Query = dict[str, str]


def _filters(
    action: Annotated[
        AuditAction | None,
        typer.Option(metavar="ACTION", help="Only this action, such as key.revoke.", show_default=False),
    ] = None,
    actor: Annotated[
        str | None, typer.Option(help="Only actions of this key, user or tenant.", show_default=False)
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Only actions on the thing with this id.", show_default=False)
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(
            "--of", metavar="TENANT", help="Only actions on things of this tenant.", show_default=False
        ),
    ] = None,
    outcome: Annotated[
        AuditOutcome | None, typer.Option(help="Only actions that ended so.", show_default=False)
    ] = None,
    since: Annotated[
        datetime | None, typer.Option(help="The earliest time, in local time.", show_default=False)
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(help="Only actions before this local time.", show_default=False)
    ] = None,
    after: Annotated[str | None, typer.Option(help="Continue after this entry.", show_default=False)] = None,
) -> _Query:
    """Convert the options to query parameters of the API."""
    given = {
        "action": action,
        "actor": actor,
        "target": target,
        "tenant": of,
        "outcome": outcome,
        "created_after": None if since is None else str(int(since.timestamp())),
        "created_before": None if until is None else str(int(until.timestamp())),
        "after": after,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _with_filters(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the options of `_filters` to a command.

    The decorated function has a parameter `query`, which gets these options as a dict of the API's query
    parameters.
    """
    options = signature(_filters).parameters
    own = [each for each in signature(command).parameters.values() if each.name != "query"]

    @wraps(command)
    def run(**given: object) -> None:
        filters = cast("dict[str, None]", {name: given.pop(name) for name in options})
        command(query=_filters(**filters), **given)

    vars(run)["__signature__"] = Signature([*options.values(), *own])  # read by typer
    return run


@audit_log.command("list")
@_with_filters
def list_acts(
    query: _Query,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of actions.")] = 20,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """List actions with actors and outcomes, newest first.

    `--json` also prints the state of the target before and after each action.
    """
    with operator_client(url, tenant) as client:
        page = client.audit_log({**query, "limit": limit, "order": "asc" if oldest else "desc"})
    if json:
        return print_json(page)
    if not page.data:
        return stderr().print("There are no such actions.")
    table = column_table("time", "actor", "action", "target", "outcome")
    for entry in page.data:
        outcome_text = f"{entry.outcome} {entry.code}" if entry.code else str(entry.outcome)
        table.add_row(
            local_timestamp(entry.created_at),
            escaped(_actor_text(entry)),
            entry.action,
            escaped(_target_text(entry)),
            escaped(outcome_text),
        )
    stdout().print(table)
    if page.has_more:
        stderr().print(f"There are more: --after {page.last_id}", style="dim", markup=False)


@audit_log.command("export")
@_with_filters
def export(query: _Query, url: Url = None, tenant: Tenant = None) -> None:
    """Print the actions in the audit log as JSON lines, oldest first.

    The export ends before the first action that is perhaps still running. To export the later actions another
    time, use --after with the id in the last printed line.
    """
    with operator_client(url, tenant) as client, client.exported_audit_log(query) as response:
        if warning := response.headers.get("x-batchwright-warning"):
            stderr().print(f"{warning}.", markup=False)
        for piece in response.iter_bytes():
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def _actor_text(entry: AuditEntryObject) -> str:
    actor = entry.actor
    if entry.source == "cli":
        return f"{actor.user}@{actor.address}"
    return actor.user or actor.key_id or actor.tenant or actor.address or "unknown"


def _target_text(entry: AuditEntryObject) -> str:
    target = entry.target
    owner = f" of {target.tenant}" if target.tenant and target.tenant != target.id else ""
    return f"{target.type} {target.id or '(all)'}{owner}"
