"""`batchwright rates`: shows and changes rate limits of the whole fleet at run time."""

import math
from typing import Annotated

import typer

from batchwright.contracts.api_objects.quotas import RateList
from batchwright.starter.operator_client import operator_client
from batchwright.starter.options import Json, Tenant, Url, command_group, explain_unknown_model
from batchwright.starter.output import column_table, escaped, print_json, stderr, stdout, stop

rates = command_group("Show or change the rate limits of the fleet.", runs_alone=True)
AllModels = Annotated[
    bool, typer.Option("--all-models", help="The rate over all models, instead of one model's.")
]


@rates.callback()
def show(context: typer.Context, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show the rate limits in effect, or change one.

    A limit is the maximum number of requests that all workers together may send per second, for one model or
    for all models together.
    """
    if context.invoked_subcommand is None:
        with operator_client(url, tenant) as client:
            _print(client.rates(), json)


@rates.command("set")
def set_rate(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL RATE", help="Model and its requests per second; 0: no limit.", show_default=False
        ),
    ],
    all_models: AllModels = False,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Set a rate limit that takes precedence over the settings.

    It takes effect within seconds.
    """
    model, rate = _target(what[:-1], all_models), _number(what[-1])
    with operator_client(url, tenant) as client, explain_unknown_model(model or ""):
        _print(client.set_rate(model, rate), json)


@rates.command("clear")
def clear_rate(
    model: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Model whose rate is cleared.", show_default=False),
    ] = None,
    all_models: AllModels = False,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Remove a rate limit, so that the settings apply again."""
    target = _target(model or [], all_models)
    with operator_client(url, tenant) as client:
        changed = {rate.model for rate in client.rates().data if rate.source == "change"}
        left = client.clear_rate(target)
    of = "over all models" if target is None else f"of {target}"
    if target not in changed:
        message = f"The rate {of} was not changed at run time, so there is nothing to undo."
        stderr().print(message, markup=False)
    elif not json:
        stderr().print(f"Cleared the rate {of}.", markup=False)
    if json:
        print_json(left)
    else:
        _print_rates(left)


def _target(names: list[str], all_models: bool) -> str | None:
    """Return the model whose rate limit the command changes; None for the limit over all models.

    If a model and `--all-models` are both given, or neither is given, the command ends with an error.
    """
    if len(names) != (0 if all_models else 1):
        stop("Name one model, or --all-models.")
    return None if all_models else names[0]


def _number(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not math.isfinite(rate):
        stop(f"{text!r} is not a number of requests per second such as 20 or 0.5; 0 means no limit.")
    return rate


def _print(page: RateList, json: bool) -> None:
    if json:
        return print_json(page)
    if not page.data:
        stderr().print("There is no rate; `batchwright rates set MODEL RATE` sets one.")
    _print_rates(page)


def _print_rates(page: RateList) -> None:
    """Print the rate limits as a table. If there is a shared limit, print this limit below the table.

    All models that have no limit of their own share this limit: it applies to the sum of their requests.
    """
    if page.data:
        table = column_table("model", "requests/s", "from")
        table.columns[1].justify = "right"
        for rate in page.data:
            amount = f"{rate.requests_per_second:g}" if rate.requests_per_second else "no limit"
            table.add_row(escaped(rate.model or "all models"), amount, rate.source)
        stdout().print(table)
    if page.shared_requests_per_second is not None:
        shared = f"{page.shared_requests_per_second:g} requests/s"
        stderr().print(f"Models without a rate of their own share {shared}.", style="dim")
