"""`batchwright quotas`: shows and changes quotas, weights and allowed models of tenants at run time.

If several tenants wait to send requests, the weight of a tenant decides its share of the requests in flight.
"""

import math
from typing import Annotated

import typer

from batchwright.contracts.api_objects.quotas import DefaultQuotas, QuotaList, QuotaObject
from batchwright.contracts.temporal_payloads.batch import MAX_PRIORITY, MIN_PRIORITY
from batchwright.contracts.terms import OverQuota, WindowTooShort
from batchwright.rules.tenants.quotas import MAX_QUOTA
from batchwright.starter.commands.tenants.budget_output import checked_cost
from batchwright.starter.operator_client import operator_client
from batchwright.starter.options import Json, Tenant, Url, command_group
from batchwright.starter.output import column_table, escaped, print_json, stderr, stdout, stop

_DEFAULT = "default"
quotas = command_group("Show or change quotas, shares and models of tenants.", runs_alone=True)
_OF = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.", show_default=False)]


def _limit(name: str, what: str) -> object:
    return _option(name, "N", f"{what}; 0: no limit, `{_DEFAULT}`: as in the settings.")


def _rate(name: str, what: str) -> object:
    return _option(name, "N", f"{what}. `{_DEFAULT}`: no limit.")


def _option(name: str, metavar: str, text: str) -> object:
    return typer.Option(f"--{name}", metavar=metavar, help=text, show_default=False)


_LiveBatches = Annotated[str | None, _limit("live-batches", "Unfinished batches")]
_StoredBytes = Annotated[str | None, _limit("stored-bytes", "Bytes of files")]
_EnqueuedLines = Annotated[str | None, _limit("enqueued-lines", "Lines without a result")]
_EnqueuedTokens = Annotated[str | None, _limit("enqueued-tokens", "Prompt tokens of these lines")]
_RequestsPerMinute = Annotated[str | None, _limit("requests-per-minute", "Requests a minute")]
_TokensPerDay = Annotated[str | None, _limit("tokens-per-day", "Tokens per day in UTC")]
_CostPerDay = Annotated[
    str | None, _limit("cost-per-day", "Cost per day in UTC, in the currency of the prices")
]
_Webhooks = Annotated[str | None, _limit("webhooks", "Webhooks for all batches")]
_Weight = Annotated[
    str | None,
    _option(
        "weight", "W", f"Share of the workers relative to other tenants; `{_DEFAULT}`: as in the settings."
    ),
]
_MaxInFlight = Annotated[
    str | None,
    _option(
        "max-in-flight",
        "N",
        f"Requests in flight at once, over all workers; at least 1 for each. `{_DEFAULT}`: no cap.",
    ),
]
_BackendRequestsPerMinute = Annotated[
    str | None,
    _rate("backend-requests-per-minute", "Requests sent to backends per minute, over all workers"),
]
_BackendTokensPerMinute = Annotated[
    str | None,
    _rate("backend-tokens-per-minute", "Tokens of these requests per minute, over all workers"),
]
_MaxPriority = Annotated[
    str | None,
    _option("max-priority", "N", f"Highest priority of new batches, 1 to {MAX_PRIORITY}. `{_DEFAULT}`: all."),
]
_OverQuota = Annotated[
    str | None,
    _option(
        "over-quota",
        "fail|wait",
        f"Whether a batch with too many enqueued lines or tokens fails or waits. `{_DEFAULT}`: it fails.",
    ),
]
_WindowTooShort = Annotated[
    str | None,
    _option(
        "window-too-short",
        "accept|refuse",
        "Whether a batch that cannot be done within its completion window is accepted or refused. "
        f"`{_DEFAULT}`: it is accepted.",
    ),
]
_Model = Annotated[
    list[str] | None, typer.Option("--model", help="Allow only this model; repeatable.", show_default=False)
]
_AllModels = Annotated[bool, typer.Option("--all-models", help="Allow all models.")]
_NoModels = Annotated[bool, typer.Option("--no-models", help="Allow no model.")]


@quotas.callback()
def show_all(context: typer.Context, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show the tenants with quotas of their own, or change quotas.

    All other tenants have the quotas of the settings.
    """
    if context.invoked_subcommand is None:
        with operator_client(url, tenant) as client:
            _print(client.quotas(), json)


@quotas.command("show")
def show(of: _OF, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show the quotas of a tenant, and how much of them is used."""
    with operator_client(url, tenant) as client:
        found = client.quotas_of(of)
        has_own = of in _tenants(client.quotas())
    if json:
        return print_json(found)
    table = column_table("quota", "limit", "used", "left", right=3)
    for one in found.data:
        limit, left = ("none", "") if one.limit is None else (f"{one.limit}", f"{one.left}")
        table.add_row(one.quota, limit, str(one.used), left)
    stdout().print(table)
    if not has_own:
        stderr().print(f"{of} has no quotas of its own: these come from the settings.", markup=False)
    cap = "no cap" if found.max_in_flight is None else f"at most {found.max_in_flight}"
    share = f"Weight: {found.weight:g}. Requests in flight: {cap}."
    for rate, what in (
        (found.backend_requests_per_minute, "Requests"),
        (found.backend_tokens_per_minute, "Tokens"),
    ):
        if rate is not None:
            share += f" {what} to backends per minute: {rate}."
    if found.max_priority < MAX_PRIORITY:
        share += f" Highest priority: {found.max_priority}."
    if found.over_quota is OverQuota.WAIT:
        share += " Batches over the quota of enqueued lines or tokens wait."
    if found.window_too_short is WindowTooShort.REFUSE:
        share += " Batches that cannot be done within their windows are refused."
    stderr().print(f"{share} Models: {_models(found.models)}.", style="dim", markup=False)


@quotas.command("set")
def set_quotas(
    of: _OF,
    live_batches: _LiveBatches = None,
    stored_bytes: _StoredBytes = None,
    enqueued_lines: _EnqueuedLines = None,
    enqueued_tokens: _EnqueuedTokens = None,
    requests_per_minute: _RequestsPerMinute = None,
    tokens_per_day: _TokensPerDay = None,
    cost_per_day: _CostPerDay = None,
    webhooks: _Webhooks = None,
    weight: _Weight = None,
    max_in_flight: _MaxInFlight = None,
    backend_requests_per_minute: _BackendRequestsPerMinute = None,
    backend_tokens_per_minute: _BackendTokensPerMinute = None,
    max_priority: _MaxPriority = None,
    over_quota: _OverQuota = None,
    window_too_short: _WindowTooShort = None,
    model: _Model = None,
    all_models: _AllModels = False,
    no_models: _NoModels = False,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Change some quotas of a tenant and keep all others.

    The change applies from the next request to the API. These changes also apply to running batches, within
    5 seconds: the weight, the cap on requests in flight, the rates of requests and tokens to backends, and
    the allowed models.
    """
    given = {
        "live_batches": (live_batches, _number),
        "stored_bytes": (stored_bytes, _number),
        "enqueued_lines": (enqueued_lines, _number),
        "enqueued_tokens": (enqueued_tokens, _number),
        "requests_per_minute": (requests_per_minute, _number),
        "tokens_per_day": (tokens_per_day, _number),
        "cost_per_day": (cost_per_day, _cost),
        "webhooks": (webhooks, _number),
        "weight": (weight, _weight),
        "max_in_flight": (max_in_flight, _cap),
        "backend_requests_per_minute": (backend_requests_per_minute, _cap),
        "backend_tokens_per_minute": (backend_tokens_per_minute, _cap),
        "max_priority": (max_priority, _priority),
        "over_quota": (over_quota, _over_quota),
        "window_too_short": (window_too_short, _window_too_short),
    }
    changes: dict[str, object] = {
        name: parse(text) for name, (text, parse) in given.items() if text is not None
    }
    if bool(model) + all_models + no_models > 1:
        stop("Use one of --model, --all-models and --no-models.")
    if model or all_models or no_models:
        changes["models"] = None if all_models else model or []
    if not changes:
        stop("There is nothing to change: give at least one option, such as --live-batches 10.")
    with operator_client(url, tenant) as client:
        _print(client.set_quotas(of, changes), json)


@quotas.command("clear")
def clear(of: _OF, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Remove all quotas of a tenant.

    For this tenant, the quotas and the weight in the settings apply again. The tenant no longer has a cap on
    requests in flight, and may use all models.
    """
    with operator_client(url, tenant) as client:
        had_own = of in _tenants(client.quotas())
        _print(client.clear_quotas(of), json)
    if not had_own:
        stderr().print(f"{of} had no quotas of its own, so there is nothing to remove.", markup=False)


def _tenants(page: QuotaList) -> set[str]:
    """Return the names of the tenants that have quotas of their own."""
    return {row.tenant for row in page.data}


def _number(text: str) -> int | None:
    if text == _DEFAULT:
        return None
    if not (text.isascii() and text.isdigit()):
        stop(f"{text!r} is not a whole number such as 1000; 0: no limit, `{_DEFAULT}` that of the settings.")
    return _integer(text)


def _cost(text: str) -> str | None:
    return None if text == _DEFAULT else checked_cost(text)


def _weight(text: str) -> float | None:
    if text == _DEFAULT:
        return None
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (weight > 0 and math.isfinite(weight)):
        stop(f"{text!r} is not a positive number such as 2.5; `{_DEFAULT}`: the weight of the settings.")
    return weight


def _cap(text: str) -> int | None:
    if text == _DEFAULT:
        return None
    if not (text.isascii() and text.isdigit() and text.strip("0")):
        stop(f"{text!r} is not a positive whole number such as 16; `{_DEFAULT}`: no limit.")
    return _integer(text)


def _priority(text: str) -> int | None:
    if text == _DEFAULT:
        return None
    if text not in {str(number) for number in range(MIN_PRIORITY, MAX_PRIORITY + 1)}:
        stop(
            f"{text!r} is not a priority from {MIN_PRIORITY} to {MAX_PRIORITY}; `{_DEFAULT}`: all priorities."
        )
    return int(text)


def _over_quota(text: str) -> str | None:
    if text == _DEFAULT:
        return None
    if text not in set(OverQuota):
        stop(f"{text!r} is not `fail` or `wait`; `{_DEFAULT}`: the batch fails.")
    return text


def _window_too_short(text: str) -> str | None:
    if text == _DEFAULT:
        return None
    if text not in set(WindowTooShort):
        stop(f"{text!r} is not `accept` or `refuse`; `{_DEFAULT}`: the batch is accepted.")
    return text


def _integer(digits: str) -> int:
    if len(digits) > len(str(MAX_QUOTA)):  # Python refuses to convert thousands of digits
        stop(f"A number of {len(digits)} digits is too large: use at most {MAX_QUOTA}.")
    return int(digits)


def _print(page: QuotaList, json: bool) -> None:
    if json:
        return print_json(page)
    if page.data:
        table = column_table("tenant", "weight", "in flight", "models", "quotas", whole=["tenant"])
        for row in page.data:
            weight = _DEFAULT if row.weight is None else f"{row.weight:g}"
            cap = "no cap" if row.max_in_flight is None else f"{row.max_in_flight}"
            table.add_row(row.tenant, weight, cap, escaped(_models(row.models)), _own(row))
        stdout().print(table)
    else:
        stderr().print("No tenant has quotas of its own; `batchwright quotas set TENANT ...` sets them.")


def _own(row: QuotaObject) -> str:
    """Return the tenant's own quotas as text, such as "live_batches 10, enqueued_lines no limit"."""
    limits = row.model_dump(include=set(DefaultQuotas.model_fields))
    own = {name: limit for name, limit in limits.items() if limit is not None}
    texts = [f"{name} {'no limit' if limit in (0, '0') else limit}" for name, limit in own.items()]
    for name in ("backend_requests_per_minute", "backend_tokens_per_minute"):
        if (rate := getattr(row, name)) is not None:
            texts.append(f"{name} {rate}")
    if row.max_priority is not None:
        texts.append(f"max_priority {row.max_priority}")
    if row.over_quota is not None:
        texts.append(f"over_quota {row.over_quota}")
    if row.window_too_short is not None:
        texts.append(f"window_too_short {row.window_too_short}")
    return ", ".join(texts) or _DEFAULT


def _models(names: list[str] | None) -> str:
    if names is None:
        return "all"
    return ", ".join(names) or "none"
