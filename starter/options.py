"""The options that commands share, and the client they ask for."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

from batchwright.settings import Settings, SettingsError, load
from starter.client import Client, ClientError
from starter.output import stop


def _id(text: str) -> str:
    """As typed. Ends the command where it can be none, as in `status $ID` of a variable that is not set."""
    if not text.strip():
        stop("The batch's id is empty: give the one that `submit` printed; `batchwright list` has them all.")
    if not text.replace("_", "").replace("-", "").isalnum():
        stop(f"{text!r} is no batch's id: those are like batch_0123abcd; `batchwright list` has them all.")
    return text


BatchId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The batch's id, batch_...", show_default=False, callback=_id),
]
Url = Annotated[
    str | None, typer.Option("--url", help="Address of the API. [BATCHWRIGHT_URL]", show_default=False)
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", help="Sent as X-Tenant. [BATCHWRIGHT_TENANT]", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, as the API answers it.")]
JsonLine = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
Interval = Annotated[float, typer.Option("--interval", min=0.05, help="Seconds between looks.")]
Wait = Annotated[bool, typer.Option("--wait", help="Stay until the batch has ended; exit as `status` does.")]


@contextmanager
def connected(url: str | None, tenant: str | None) -> Generator[Client]:
    """Ends the command with a sentence where the API cannot be reached or refuses."""
    settings = settings_or_stop(url=url, tenant=tenant)
    try:
        with Client(
            settings.url,
            api_key=settings.api_key,
            tenant=settings.tenant,
            tenant_header=settings.tenant_header,
        ) as client:
            yield client
    except ClientError as error:
        stop(str(error))


@contextmanager
def served_model(model: str) -> Generator[None]:
    """Where the API knows no such model, it is said with the command that lists them."""
    try:
        yield
    except ClientError as error:
        if error.code != "model_not_found":
            raise
        stop_without_model(model)


def stop_without_model(model: str) -> NoReturn:
    stop(f"There is no model {model}; `batchwright models` lists them.")


def settings_or_stop(**options: str | None) -> Settings:
    try:
        return load(**{name: value for name, value in options.items() if value is not None})
    except SettingsError as error:
        stop(_as_given(str(error), options))


def _as_given(message: str, options: dict[str, str | None]) -> str:
    """Names what the user wrote: the option, not the variable that it stands before."""
    for name, value in options.items():
        if value is not None:
            message = message.replace(f"BATCHWRIGHT_{name.upper()} ", f"--{name} ")
    return message
