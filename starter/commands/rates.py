"""`batchwright rates`: how many requests per second the whole fleet sends, seen and changed at run time."""

import math
from typing import Annotated

import typer
from rich.table import Table

from starter.operator_views import Rate, RatePage
from starter.options import Json, Tenant, Url, connected, served_model
from starter.output import print_json, stderr, stdout, stop
from starter.tables import columns, plain

rates = typer.Typer(
    help="Show or change the rates of the whole fleet.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
AllModels = Annotated[
    bool, typer.Option("--all-models", help="The rate over all models, in place of a model's.")
]


@rates.callback()
def show(context: typer.Context, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show the rates in effect, or change one.

    A rate is a number of requests per second of the whole fleet, for one model or over all of them.
    """
    if context.invoked_subcommand is None:
        with connected(url, tenant) as client:
            _print(client.rates(), json)


@rates.command("set")
def set_rate(
    what: Annotated[
        list[str],
        typer.Argument(metavar="[MODEL] RATE", help="Requests per second; 0: no limit.", show_default=False),
    ],
    all_models: AllModels = False,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Set a rate, whatever the settings say.

    Workers follow within seconds.
    """
    model, rate = _target(what[:-1], all_models), _number(what[-1])
    with connected(url, tenant) as client, served_model(model or ""):
        _print(client.set_rate(model, rate), json)


@rates.command("clear")
def clear_rate(
    model: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]", show_default=False)] = None,
    all_models: AllModels = False,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Take a change back: the settings hold again."""
    target = _target(model or [], all_models)
    with connected(url, tenant) as client:
        changed = {rate.model for rate in client.rates().data if rate.source == "change"}
        _print(client.clear_rate(target), json)
    if target not in changed:
        of = "over all models" if target is None else f"of {target}"
        said = f"The rate {of} was not changed at run time: nothing was taken back."
        stderr().print(said, markup=False)


def _target(names: list[str], all_models: bool) -> str | None:
    """The model, or None for all."""
    if len(names) != (0 if all_models else 1):
        stop("Name one model, or --all-models.")
    return None if all_models else names[0]


def _number(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not math.isfinite(rate):
        stop(f"{text!r} is no number of requests per second, such as 20 or 0.5; 0 is no limit.")
    return rate


def _print(page: RatePage, json: bool) -> None:
    if json:
        return print_json(page)
    if page.data:
        stdout().print(_table(page.data))
    else:
        stderr().print("There is no rate; `batchwright rates set MODEL RATE` sets one.")
    if page.shared_requests_per_second is not None:
        shared = f"{page.shared_requests_per_second:g} requests/s"
        stderr().print(f"Models without a rate of their own share {shared}.", style="dim")


def _table(found: list[Rate]) -> Table:
    table = columns("model", "requests/s", "from")
    table.columns[1].justify = "right"
    for rate in found:
        amount = f"{rate.requests_per_second:g}" if rate.requests_per_second else "no limit"
        table.add_row(plain(rate.model or "all models"), amount, rate.source)
    return table
