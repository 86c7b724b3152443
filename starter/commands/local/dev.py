"""`batchwright dev`: runs the embedded stack in the foreground."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchwright.settings import Settings, SettingsError, load
from batchwright.settings.unknown_variables import unknown_variables
from batchwright.starter.embedded_stack.errors import StackError
from batchwright.starter.embedded_stack.terminal import (
    address_panel,
    print_default_limit,
    print_error,
    print_next_commands,
    until_signal,
)
from batchwright.starter.output import stderr, stdout

if TYPE_CHECKING:
    from batchwright.starter.embedded_stack.directory import StackInfo
    from batchwright.starter.embedded_stack.service_commands import DevOptions

_WRONG_SETTING = 2
_FAILED = 1
_STARTING = "Starting PostgreSQL, Temporal, API and workers ..."


def dev(
    data: Annotated[Path, typer.Option(help="Directory for state and logs.")] = Path(".batchwright"),
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the API; 0: any. [BATCHWRIGHT_API_PORT, 8000]"),
    ] = None,
    temporal_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of Temporal; 0: any.")] = 7233,
    ui_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the Temporal Web UI; 0: any.")
    ] = 8233,
    workers: Annotated[
        int, typer.Option(min=0, max=64, help="Worker processes; 0: start them yourself.")
    ] = 1,
    backend: Annotated[
        list[str] | None,
        typer.Option(help="URL of a backend to use; repeatable. [BATCHWRIGHT_BACKENDS]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON when all is ready.")] = False,
) -> None:
    """Run the whole stack in the foreground.

    The stack is Temporal, PostgreSQL, a simulated backend, the API and workers. Ctrl-C stops the stack. With
    BATCHWRIGHT_REGISTRY or --backend, your backends replace the simulated backend.
    """
    # Imported here because it loads Temporal's client, which takes a second.
    from batchwright.starter.embedded_stack.service_commands import DevOptions, own_backends

    settings = settings_or_exit(backend)
    options = DevOptions(
        data=data,
        settings=settings,
        port=settings.api_port if port is None else port,
        temporal_port=temporal_port,
        ui_port=ui_port,
        workers=workers,
        backends=tuple(settings.backends) if backend else own_backends(settings),
        registry=settings.registry,
    )
    try:
        asyncio.run(_run(options, json))
    except StackError as error:
        print_error(stderr(), error)
        raise typer.Exit(_FAILED) from None


def settings_or_exit(backends: list[str] | None = None) -> Settings:
    """Load the settings. If a setting is wrong, end the command with an error.

    Print a warning for each environment variable that begins with `BATCHWRIGHT_` but is not a setting.

    Args:
        backends: URLs that replace the configured backends. None or an empty list keeps the configured
            backends.
    """
    # OpenAI clients need /v1 in their base URL, so users often copy the URL with it.
    chosen = [url.rstrip("/").removesuffix("/v1") for url in backends or []]
    try:
        settings = load(backends=chosen) if chosen else load()
    except SettingsError as error:
        stderr().print(str(error), markup=False)
        raise typer.Exit(_WRONG_SETTING) from None
    for name, meant in unknown_variables().items():
        hint = f" Did you mean {meant}?" if meant else ""
        stderr().print(f"{name} is not a setting and is ignored.{hint}", markup=False)
    return settings


async def _run(options: "DevOptions", json: bool) -> None:
    from batchwright.starter.embedded_stack.supervisor import Supervisor

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

    await until_signal(stay(), on_repeat=supervisor.kill, say=say)


def _show(info: "StackInfo", options: "DevOptions", json: bool) -> None:
    if json:
        print(info.model_dump_json(), flush=True)
    else:
        console = stdout()
        console.print(address_panel(info, options.registry or ", ".join(options.backends)))
        if options.backends and not options.registry:
            print_default_limit(console, options.settings)
        print_next_commands(console, info, with_keys=options.settings.auth == "api_key")
