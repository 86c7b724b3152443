"""`batchwright dev`: the embedded stack in the foreground."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchwright.settings import Settings, SettingsError, load
from starter.output import stderr, stdout
from starter.stack.errors import StackError
from starter.stack.running import until_signal
from starter.stack.view import complain, panel, use

if TYPE_CHECKING:
    from starter.stack.plan import DevOptions
    from starter.stack.state import StackInfo

_WRONG_SETTING = 2
_FAILED = 1
_STARTING = "Starting PostgreSQL, Temporal, API and workers ..."


def dev(
    data: Annotated[Path, typer.Option(help="Directory of all state and logs.")] = Path(".batchwright"),
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Of the API; 0: a free one. [BATCHWRIGHT_API_PORT, or 8000]"),
    ] = None,
    temporal_port: Annotated[int, typer.Option(min=0, max=65535, help="Of Temporal; 0: a free one.")] = 7233,
    ui_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of the Temporal Web UI; 0: a free one.")
    ] = 8233,
    workers: Annotated[
        int, typer.Option(min=0, max=64, help="Worker processes; 0: start them yourself.")
    ] = 1,
    backend: Annotated[
        list[str] | None,
        typer.Option(help="URL of a real backend, not the simulator; repeatable. [BATCHWRIGHT_BACKENDS]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON line on stdout when all is ready.")] = False,
) -> None:
    """Run the whole stack here, in the foreground.

    Temporal, PostgreSQL, a simulated backend, API and workers; Ctrl-C stops them. With
    BATCHWRIGHT_REGISTRY, the backends of that file are asked, and none is simulated.
    """
    # Imported when it is used: it brings Temporal's client, which every other command would wait for.
    from starter.stack.plan import DevOptions

    settings = settings_or_exit(backend)
    options = DevOptions(
        data=data,
        settings=settings,
        port=settings.api_port if port is None else port,
        temporal_port=temporal_port,
        ui_port=ui_port,
        workers=workers,
        backends=tuple(settings.backends),
        registry=settings.registry,
    )
    try:
        asyncio.run(_run(options, json))
    except StackError as error:
        complain(stderr(), error)
        raise typer.Exit(_FAILED) from None


def settings_or_exit(backends: list[str] | None = None) -> Settings:
    """The settings, checked before anything listens."""
    # Clients of OpenAI want the /v1 in their base URL, so it is often copied with it.
    chosen = [url.rstrip("/").removesuffix("/v1") for url in backends or []]
    try:
        return load(backends=chosen) if chosen else load()
    except SettingsError as error:
        stderr().print(str(error), markup=False)
        raise typer.Exit(_WRONG_SETTING) from None


async def _run(options: "DevOptions", json: bool) -> None:
    from starter.stack.supervisor import Supervisor

    errors = stderr()

    def say(text: str) -> None:
        errors.print(text, markup=False)

    supervisor = Supervisor(options, say)

    async def stay() -> None:
        starting = errors.status(_STARTING)
        if errors.is_terminal:
            starting.start()
        else:
            say(_STARTING)
        try:
            async with supervisor:
                starting.stop()
                _show(supervisor.info, options, json)
                await asyncio.Event().wait()
        finally:
            starting.stop()

    await until_signal(stay(), hurry=supervisor.hurry, say=say)


def _show(info: "StackInfo", options: "DevOptions", json: bool) -> None:
    if json:
        print(info.model_dump_json(), flush=True)
    else:
        console = stdout()
        console.print(panel(info, options.registry or ", ".join(options.backends)))
        use(console, info, with_keys=options.settings.auth == "api_key")
