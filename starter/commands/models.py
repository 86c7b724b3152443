"""`batchwright models`: who serves what, seen and changed at run time."""

from typing import Annotated

import typer
from rich.table import Table

from starter.commands.fleet import show_models
from starter.operator_views import Place, RegisteredModel, RegisteredModels
from starter.options import Json, JsonLine, Tenant, Url, connected, served_model, stop_without_model
from starter.output import print_json, stderr, stdout, stop
from starter.tables import columns, plain

models = typer.Typer(
    help="Show or change which models are served, and by whom.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Model = Annotated[str, typer.Argument(metavar="MODEL", show_default=False)]
Names = list[str] | None


@models.callback()
def show_all(context: typer.Context, json: JsonLine = False) -> None:
    """Show or change which models are served, and by whom.

    By itself it lists them with the task queue of each, as database and settings have them.
    """
    if context.invoked_subcommand is None:
        show_models(json)


@models.command("show")
def show(model: Model, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show one model: its backends, and where it comes from."""
    with connected(url, tenant) as client:
        page = client.registered()
    for found in page.data:
        if model == found.model or model in found.aliases:
            return print_json(found) if json else _print(RegisteredModels(data=[found]), json)
    if model in page.removed:
        stop(f"{model} was taken away at run time; `batchwright models revert` brings it back.")
    stop_without_model(model)


@models.command("register")
def register(
    model: Model,
    backend: Annotated[
        list[str],
        typer.Option("--backend", metavar="URL", help="Who serves it; repeatable.", show_default=False),
    ],
    weight: Annotated[
        list[float] | None,
        typer.Option("--weight", help="Of each --backend, in their order.", show_default=False),
    ] = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option("--upstream", metavar="NAME", help="The name there of each.", show_default=False),
    ] = None,
    fallback: Annotated[
        Names, typer.Option("--fallback", metavar="MODEL", help="Answers while all are away; repeatable.")
    ] = None,
    alias: Annotated[
        Names, typer.Option("--alias", metavar="NAME", help="Another name for it; repeatable.")
    ] = None,
    kind: Annotated[str, typer.Option("--kind", help="How it is asked: sync, poll or callback.")] = "sync",
    job: Annotated[
        Names,
        typer.Option(
            "--job", metavar="KEY=VALUE", help="Of kind poll or callback, a key of `jobs`; repeatable."
        ),
    ] = None,
    key: Annotated[
        str, typer.Option("--key", metavar="NAME", help="The api_key_name of every --backend.")
    ] = "",
    choice: Annotated[str, typer.Option("--choice", help="least-outstanding or prefix-affine.")] = "",
    hedge_after: Annotated[
        str,
        typer.Option("--hedge-after", metavar="TIME", help="Then a second backend is asked too, as in 90s."),
    ] = "",
    limit: Annotated[
        Names, typer.Option("--limit", metavar="KEY=VALUE", help="A key of `limits`; repeatable.")
    ] = None,
    retry: Annotated[
        Names, typer.Option("--retry", metavar="KEY=VALUE", help="A key of `retries`; repeatable.")
    ] = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Register a model, or replace one as a whole.

    Workers follow within seconds, whatever the registry's file says.
    """
    backends = _backends(backend, weight or [], upstream or [])
    config: dict[str, object] = {"backends": backends, "fallbacks": fallback or [], "aliases": alias or []}
    for place in backends if key else ():
        place["api_key_name"] = key
    config |= {"choice": choice} if choice else {}
    config |= {"hedge_after": hedge_after} if hedge_after else {}
    config |= {name: _pairs(name, said) for name, said in (("limits", limit), ("retries", retry)) if said}
    if kind != "sync" or job:
        config |= {"kind": kind, "jobs": _jobs(job or [])}
    with connected(url, tenant) as client:
        _print(client.register(model, config), json)


@models.command("remove")
def remove(model: Model, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Take a model away, also one of the registry's file."""
    with connected(url, tenant) as client, served_model(model):
        _print(client.remove_model(model), json)


@models.command("revert")
def revert(model: Model, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Take a change back.

    The registry's file holds again, or what backends list.
    """
    with connected(url, tenant) as client:
        before = client.registered()
        sources = {entry.model: entry.source for entry in before.data}
        if model not in sources and model not in before.removed:
            stop_without_model(model)
        _print(client.revert_model(model), json)
    if model not in before.removed and sources[model] != "change":
        stderr().print(f"{model} was not changed at run time: nothing was taken back.", markup=False)


def _jobs(texts: list[str]) -> dict[str, str]:
    found = [text.partition("=") for text in texts]
    for name, equals, _ in found:
        if not equals or not name:
            stop(f"--job {name} is not KEY=VALUE, such as poll_endpoint_template=/status/{{id}}.")
    return {name: value for name, _, value in found}


def _backends(urls: list[str], weights: list[float], upstreams: list[str]) -> list[dict[str, object]]:
    for option, values in (("--weight", weights), ("--upstream", upstreams)):
        if values and len(values) != len(urls):
            stop(f"Give {option} once for each --backend, or not at all.")
    backends: list[dict[str, object]] = [{"url": url} for url in urls]
    for place, weight in zip(backends, weights, strict=False):
        place["weight"] = weight
    for place, name in zip(backends, upstreams, strict=False):
        place["model"] = name
    return backends


def _pairs(name: str, said: list[str]) -> dict[str, str]:
    """The API reads numbers and durations from text."""
    for pair in said:
        if not pair.partition("=")[1]:
            stop(f"{pair!r} is not of the form KEY=VALUE, with a key of `{name}` of the registry.")
    return dict(pair.split("=", 1) for pair in said)


def _print(page: RegisteredModels, json: bool) -> None:
    if json:
        return print_json(page)
    if page.data:
        stdout().print(_table(page.data))
    else:
        stderr().print("No model is registered; `batchwright models register MODEL --backend URL` does.")
    for said in [said for entry in page.data for said in entry.problems]:
        stderr().print(f"Not heeded: {said}.", style="yellow", markup=False)
    if page.removed:
        stderr().print(f"Taken away: {', '.join(page.removed)}.", style="dim", markup=False)


def _table(found: list[RegisteredModel]) -> Table:
    table = columns("model", "backend", "also", "falls back on", "from")
    for entry in found:
        texts = (
            entry.model,
            "\n".join(_place(place) for place in entry.backends),
            "\n".join(entry.aliases),
            "\n".join(entry.fallbacks),
            entry.source if entry.kind == "sync" else f"{entry.source}, {entry.kind}",
        )
        table.add_row(*map(plain, texts))
    return table


def _place(place: Place) -> str:
    """http://vllm-0:8000 x2 as org/llama"""
    weight = f" x{place.weight:g}" if place.weight != 1 else ""
    return f"{place.url}{weight}{f' as {place.model}' if place.model else ''}"
