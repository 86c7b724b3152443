"""`batchwright models`: shows and changes models and their backends at run time."""

from typing import Annotated

import typer
from pydantic import JsonValue
from rich.table import Table

from batchwright.contracts.api_objects.operator import (
    ModelSettingsObject,
    RegisteredBackend,
    RegisteredModels,
)
from batchwright.starter.client_errors import ClientError
from batchwright.starter.commands.fleet.model_table import show_models
from batchwright.starter.operator_client import operator_client
from batchwright.starter.options import (
    Json,
    JsonLine,
    Tenant,
    Url,
    command_group,
    explain_unknown_model,
    stop_unknown_model,
)
from batchwright.starter.output import column_table, escaped, print_json, stderr, stdout, stop

models = command_group("Show or change models and their backends.", runs_alone=True)
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.", show_default=False)]
Names = list[str] | None
Weights = Annotated[
    list[float] | None,
    typer.Option("--weight", help="Weight of each new backend, in the same order.", show_default=False),
]
Upstreams = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream", metavar="NAME", help="Name of the model at each new backend.", show_default=False
    ),
]
Fallbacks = Annotated[
    Names,
    typer.Option("--fallback", metavar="MODEL", help="Model that answers if all backends fail; repeatable."),
]
Aliases = Annotated[
    Names, typer.Option("--alias", metavar="NAME", help="Another name of the model; repeatable.")
]
Kind = Annotated[str, typer.Option("--kind", help="Kind of request: sync (default), poll or callback.")]
Jobs = Annotated[
    Names,
    typer.Option("--job", metavar="KEY=VALUE", help="Setting of `jobs`, for poll and callback; repeatable."),
]
Key = Annotated[str, typer.Option("--key", metavar="NAME", help="api_key_name of every new backend.")]
BackendPriority = Annotated[
    int | None,
    typer.Option("--priority", metavar="NUMBER", help="priority of every new backend.", show_default=False),
]
Balancing = Annotated[
    str, typer.Option("--load-balancing", help="How a backend is chosen: least-outstanding or prefix-affine.")
]
Limits = Annotated[
    Names,
    typer.Option("--limit", metavar="KEY=VALUE", help="Setting of `limits`, as in in_flight=8; repeatable."),
]
Retries = Annotated[
    Names,
    typer.Option(
        "--retry", metavar="KEY=VALUE", help="Setting of `retries`, as in max_attempts=3; repeatable."
    ),
]
Prices = Annotated[
    Names,
    typer.Option("--price", metavar="KEY=VALUE", help="Setting of `prices`, as in input=0.15; repeatable."),
]


@models.callback()
def show_all(context: typer.Context, json: JsonLine = False) -> None:
    """Show or change models and their backends.

    Without a subcommand, list all models with their backends and task queues. The models are read from the
    database and the settings, without the API.
    """
    if context.invoked_subcommand is None:
        show_models(json)


@models.command("list")
def list_all(json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """List all models with their backends.

    The list also shows the source of each model: the registry file, a change at run time, or the list of
    models of a backend.
    """
    with operator_client(url, tenant) as client:
        _print(client.registered(), json)


@models.command("show")
def show(model: Model, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show one model, and each setting with its origin."""
    with operator_client(url, tenant) as client:
        page = client.registered()
        for found in page.data:
            if model == found.model or model in found.aliases:
                detail = client.model(found.model)
                if json:
                    return print_json(detail)
                _print(RegisteredModels(data=[found], removed=[]), json)
                return stdout().print(_settings_table(detail))
    if model in page.removed:
        stop(f"{model} was removed at run time; `batchwright models revert` restores it.")
    stop_unknown_model(model)


@models.command("register")
def register(
    model: Model,
    backend: Annotated[
        list[str],
        typer.Option("--backend", metavar="URL", help="A backend; repeatable.", show_default=False),
    ],
    weight: Weights = None,
    upstream: Upstreams = None,
    fallback: Fallbacks = None,
    alias: Aliases = None,
    kind: Kind = "",
    job: Jobs = None,
    key: Key = "",
    priority: BackendPriority = None,
    load_balancing: Balancing = "",
    limit: Limits = None,
    retry: Retries = None,
    price: Prices = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a model that exists.")] = False,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Register a model.

    The change takes effect within seconds, and overrides the registry file. If the model already exists, you
    must use --replace.
    """
    config: dict[str, object] = {"backends": _backends("--backend", backend, weight, upstream, key, priority)}
    config |= _options(fallback, alias, kind, job, load_balancing, limit, retry, price)
    with operator_client(url, tenant) as client:
        try:
            _print(client.register(model, config, replace=replace), json)
        except ClientError as error:
            if error.code != "version_conflict":
                raise
            stop(
                f"{model} exists already: `batchwright models set` changes some of its settings, "
                "--replace replaces all of them."
            )


@models.command("set")
def set_some(
    model: Model,
    add_backend: Annotated[
        Names, typer.Option("--add-backend", metavar="URL", help="Another backend; repeatable.")
    ] = None,
    remove_backend: Annotated[
        Names, typer.Option("--remove-backend", metavar="URL", help="A backend to remove; repeatable.")
    ] = None,
    weight: Weights = None,
    upstream: Upstreams = None,
    fallback: Fallbacks = None,
    alias: Aliases = None,
    kind: Kind = "",
    job: Jobs = None,
    key: Key = "",
    priority: BackendPriority = None,
    load_balancing: Balancing = "",
    limit: Limits = None,
    retry: Retries = None,
    price: Prices = None,
    reset: Annotated[
        Names,
        typer.Option("--reset", metavar="NAME", help="Undo a change, as in limits.in_flight; repeatable."),
    ] = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Change some settings of a model and keep all others.

    --fallback replaces all fallbacks, and --alias all aliases. --weight, --upstream, --key and --priority
    apply only to the backends that --add-backend adds.
    """
    changes = _options(fallback, alias, kind, job, load_balancing, limit, retry, price)
    for name in reset or []:
        section, dot, setting = name.partition(".")
        known = changes.get(section)
        changes[section] = {**(known if isinstance(known, dict) else {}), setting: None} if dot else None
    added = _backends("--add-backend", add_backend or [], weight, upstream, key, priority)
    if not changes and not added and not remove_backend:
        stop("There is nothing to change: give at least one option, such as --limit in_flight=8.")
    with operator_client(url, tenant) as client, explain_unknown_model(model):
        version = None
        if added or remove_backend:
            present = client.model(model)
            version = present.version
            changes["backends"] = [*_remaining_backends(present, remove_backend or []), *added]
        detail = client.set_model(model, changes, version)
    if json:
        return print_json(detail)
    stdout().print(_settings_table(detail))
    _print_problems(detail.problems)


def _remaining_backends(present: ModelSettingsObject, removed: list[str]) -> list[dict[str, object]]:
    """Return the backends of a model except those in `removed`, in the form that the API expects.

    Each backend is a dict with the key `url`. If the model has another name at this backend, the key `model`
    contains this name. If a URL in `removed` is not a backend of the model, the command ends with an error.
    """
    removed_urls = {url.rstrip("/").removesuffix("/v1") for url in removed}  # as the registry stores URLs
    unknown = sorted(removed_urls - {backend.url for backend in present.backends})
    if unknown:
        there = ", ".join(backend.url for backend in present.backends)
        stop(f"{present.model} has no backend {unknown[0]}; it has {there}.")
    kept: list[dict[str, object]] = []
    for backend in present.backends:
        if backend.url not in removed_urls:
            upstream = backend.settings.get("model")
            kept.append(
                {"url": backend.url, **({"model": upstream.value} if upstream and upstream.value else {})}
            )
    return kept


@models.command("remove")
def remove(model: Model, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Remove a model, even if it is in the registry file."""
    with operator_client(url, tenant) as client, explain_unknown_model(model):
        _print(client.remove_model(model), json)


@models.command("revert")
def revert(model: Model, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Undo the changes to a model.

    The settings in the registry file, or in the model lists of the backends, apply again.
    """
    with operator_client(url, tenant) as client:
        before = client.registered()
        sources = {entry.model: entry.source for entry in before.data}
        if model not in sources and model not in before.removed:
            stop_unknown_model(model)
        _print(client.revert_model(model), json)
    if model not in before.removed and sources[model] != "change":
        stderr().print(f"{model} was not changed at run time, so there is nothing to undo.", markup=False)


def _options(
    fallback: Names,
    alias: Names,
    kind: str,
    job: Names,
    load_balancing: str,
    limit: Names,
    retry: Names,
    price: Names,
) -> dict[str, object]:
    """Convert command-line options to a request body for the API. The keys are the names of the fields.

    Options that the user did not give are left out.
    """
    found: dict[str, object] = {
        "fallbacks": fallback,
        "aliases": alias,
        "load_balancing": load_balancing,
        "kind": kind,
    }
    for option, section, texts in (
        ("--limit", "limits", limit),
        ("--retry", "retries", retry),
        ("--job", "jobs", job),
        ("--price", "prices", price),
    ):
        found[section] = _pairs(option, section, texts or [])
    return {name: value for name, value in found.items() if value}


def _backends(
    option: str,
    urls: list[str],
    weights: list[float] | None,
    upstreams: Names,
    key: str,
    priority: int | None,
) -> list[dict[str, object]]:
    for name, values in (("--weight", weights), ("--upstream", upstreams)):
        if values and len(values) != len(urls):
            stop(f"Give {name} once for each {option}, or not at all.")
    if key and not urls:
        stop(f"Give --key with {option}: it is the api_key_name of those backends.")
    if priority is not None and not urls:
        stop(f"Give --priority with {option}: it is the priority of those backends.")
    backends: list[dict[str, object]] = [{"url": url} for url in urls]
    for backend, weight in zip(backends, weights or [], strict=False):
        backend["weight"] = weight
    for backend, name in zip(backends, upstreams or [], strict=False):
        backend["model"] = name
    for backend in backends if key else ():
        backend["api_key_name"] = key
    for backend in backends if priority is not None else ():
        backend["priority"] = priority
    return backends


def _pairs(option: str, section: str, texts: list[str]) -> dict[str, str]:
    """Parse options of the form KEY=VALUE into a dict.

    If a text does not have this form, the command ends with an error that names `option` and `section`.

    Args:
        option: name of the option, such as `--limit`.
        section: the part of a model's settings to which the keys belong, such as `limits`.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            stop(f"{option} {text} is not KEY=VALUE, with a key of `{section}` in the registry.")
        pairs[key] = value
    return pairs


def _print(page: RegisteredModels, json: bool) -> None:
    if json:
        return print_json(page)
    if page.data:
        table = column_table("model", "backend", "also", "falls back on", "from")
        for entry in page.data:
            texts = (
                entry.model,
                "\n".join(_backend_text(backend) for backend in entry.backends),
                "\n".join(entry.aliases),
                "\n".join(entry.fallbacks),
                entry.source if entry.kind == "sync" else f"{entry.source}, {entry.kind}",
            )
            table.add_row(*map(escaped, texts))
        stdout().print(table)
    else:
        stderr().print(
            "No model is registered; `batchwright models register MODEL --backend URL` registers one."
        )
    _print_problems([text for entry in page.data for text in entry.problems])
    if page.removed:
        stderr().print(f"Removed: {', '.join(page.removed)}.", style="dim", markup=False)


def _print_problems(problems: list[str]) -> None:
    for text in problems:
        stderr().print(f"Ignored: {text}.", style="yellow", markup=False)


def _settings_table(detail: ModelSettingsObject) -> Table:
    """Return a table with all settings of a model, and the settings of each of its backends.

    If a setting of a backend has the default value, the table does not show this setting.
    """
    table = column_table("setting", "value", "from")
    for name, setting in detail.settings.items():
        table.add_row(*map(escaped, (name, _shown(setting.value), setting.origin)))
    for backend in detail.backends:
        table.add_row(*map(escaped, ("backend", backend.url, backend.origin)))
        for name, setting in backend.settings.items():
            if setting.origin != "default":
                table.add_row(*map(escaped, (f"  {name}", _shown(setting.value), setting.origin)))
    table.add_row(*map(escaped, ("version", str(detail.version), "")))
    return table


def _shown(value: JsonValue) -> str:
    match value:
        case None | "" | []:
            return "-"
        case list():
            return ", ".join(map(str, value))
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _backend_text(backend: RegisteredBackend) -> str:
    """Describe a backend by URL, weight and model name, as in `http://vllm-0:8000 x2 as org/llama`."""
    weight = f" x{backend.weight:g}" if backend.weight != 1 else ""
    return f"{backend.url}{weight}{f' as {backend.model}' if backend.model else ''}"
