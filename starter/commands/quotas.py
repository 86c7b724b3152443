"""`batchwright quotas`: what tenants may have, have, and may use; seen and changed at run time."""

from typing import Annotated

import typer
from rich.table import Table

from starter.operator_views import OwnQuotas, QuotaPage, TenantLimits
from starter.options import Json, Tenant, Url, connected
from starter.output import print_json, stderr, stdout, stop
from starter.tables import columns, plain

_DEFAULT = "default"
quotas = typer.Typer(
    help="Show or change tenants' quotas and the models they may use.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_OF = Annotated[str, typer.Argument(metavar="TENANT", show_default=False)]


def _limit(name: str, what: str) -> object:
    text = f"{what}; 0: no limit, `{_DEFAULT}`: what the settings say."
    return typer.Option(f"--{name}", metavar="N", help=text, show_default=False)


@quotas.callback()
def show_all(context: typer.Context, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show the quotas of tenants that have their own, or change them.

    All other tenants have what the API's settings say.
    """
    if context.invoked_subcommand is None:
        with connected(url, tenant) as client:
            _print(client.quotas(), json)


@quotas.command("show")
def show(of: _OF, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show what holds for a tenant, and what it has taken."""
    with connected(url, tenant) as client:
        found = client.quotas_of(of)
        has_own = of in _tenants(client.quotas())
    if json:
        return print_json(found)
    stdout().print(_limits(found))
    if not has_own:
        stderr().print(f"{of} has no quotas of its own: these are the settings'.", markup=False)
    stderr().print(f"Models: {_models(found.models)}.", style="dim", markup=False)


@quotas.command("set")
def set_quotas(
    of: _OF,
    live_batches: Annotated[str | None, _limit("live-batches", "Unfinished batches")] = None,
    stored_bytes: Annotated[str | None, _limit("stored-bytes", "Bytes of files")] = None,
    enqueued_lines: Annotated[str | None, _limit("enqueued-lines", "Lines without a result")] = None,
    enqueued_tokens: Annotated[str | None, _limit("enqueued-tokens", "Their prompts' tokens")] = None,
    requests_per_minute: Annotated[str | None, _limit("requests-per-minute", "Requests a minute")] = None,
    tokens_per_day: Annotated[str | None, _limit("tokens-per-day", "Tokens of a day in UTC")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="A model it may use, and no other; repeatable.", show_default=False),
    ] = None,
    all_models: Annotated[bool, typer.Option("--all-models", help="It may use every model.")] = False,
    no_models: Annotated[bool, typer.Option("--no-models", help="It may use none.")] = False,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Change a tenant's quotas; what is not named stays.

    They hold at once; batches that run lose models within seconds.
    """
    asked = {
        "live_batches": live_batches,
        "stored_bytes": stored_bytes,
        "enqueued_lines": enqueued_lines,
        "enqueued_tokens": enqueued_tokens,
        "requests_per_minute": requests_per_minute,
        "tokens_per_day": tokens_per_day,
    }
    changes: dict[str, object] = {name: _number(text) for name, text in asked.items() if text is not None}
    if bool(model) + all_models + no_models > 1:
        stop("Use one of --model, --all-models and --no-models.")
    if model or all_models or no_models:
        changes["models"] = None if all_models else model or []
    if not changes:
        stop("Name what is to change, such as --live-batches 10.")
    with connected(url, tenant) as client:
        _print(client.set_quotas(of, changes), json)


@quotas.command("clear")
def clear(of: _OF, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Take all of a tenant's own back.

    What the settings say holds again, and every model may be used.
    """
    with connected(url, tenant) as client:
        had_own = of in _tenants(client.quotas())
        _print(client.clear_quotas(of), json)
    if not had_own:
        stderr().print(f"{of} had no quotas of its own: nothing was taken back.", markup=False)


def _tenants(page: QuotaPage) -> set[str]:
    """Those that have quotas of their own."""
    return {row.tenant for row in page.data}


def _number(text: str) -> int | None:
    if text == _DEFAULT:
        return None
    if not (text.isascii() and text.isdigit()):
        stop(f"{text!r} is no whole number, such as 1000; 0 is no limit, `{_DEFAULT}` what the settings say.")
    return int(text)


def _print(page: QuotaPage, json: bool) -> None:
    if json:
        return print_json(page)
    if page.data:
        stdout().print(_table(page.data))
    else:
        stderr().print("No tenant has quotas of its own; `batchwright quotas set TENANT ...` gives it some.")


def _table(rows: list[OwnQuotas]) -> Table:
    names = ("batches", "bytes", "lines", "tokens", "requests/min", "tokens/day")
    table = columns("tenant", "models", *names, right=len(names))
    for row in rows:
        counts = (
            row.live_batches,
            row.stored_bytes,
            row.enqueued_lines,
            row.enqueued_tokens,
            row.requests_per_minute,
            row.tokens_per_day,
        )
        table.add_row(row.tenant, plain(_models(row.models)), *map(_own, counts))
    return table


def _limits(found: TenantLimits) -> Table:
    table = columns("quota", "limit", "used", "left", right=3)
    for one in found.data:
        limit, left = ("none", "") if one.limit is None else (f"{one.limit}", f"{one.left}")
        table.add_row(one.quota, limit, str(one.used), left)
    return table


def _own(limit: int | None) -> str:
    if limit is None:
        return _DEFAULT
    return str(limit) if limit else "no limit"


def _models(names: list[str] | None) -> str:
    if names is None:
        return "all"
    return ", ".join(names) or "none"
