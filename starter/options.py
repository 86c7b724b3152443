"""Options that several commands share, and the API client that these options configure."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer
from typer.models import ArgumentInfo

from batchwright.contracts.model_registry.price_config import parse_max_cost
from batchwright.contracts.terms import Endpoint
from batchwright.rules.deadline import DEFAULT_WINDOW, is_window, parse_start_time
from batchwright.rules.input.oversized_input import GROUP_PREFIX
from batchwright.settings import Settings, SettingsError, load
from batchwright.starter.client import Client
from batchwright.starter.client_errors import ClientError
from batchwright.starter.output import stop


def command_group(summary: str, *, runs_alone: bool = False) -> typer.Typer:
    """Return a new Typer group of commands. The group is empty: add the commands to it.

    Args:
        summary: description of the group in its help.
        runs_alone: what happens if the user names no command. If True, the group's own function runs. If
            False, the help is shown.
    """
    return typer.Typer(
        help=summary,
        no_args_is_help=not runs_alone,
        invoke_without_command=runs_alone,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def _checked_id(text: str) -> str:
    """Check that a text looks like an id, and return it. Otherwise, end the command with an error."""
    if not text.strip():
        stop("The batch id is empty: use the id that `submit` printed; `batchwright list` shows all ids.")
    if not text.replace("_", "").replace("-", "").isalnum():
        stop(f"{text!r} is not a batch id: ids look like batch_0123abcd; `batchwright list` shows all ids.")
    return text


def _checked_batch_id(text: str) -> str:
    """Check that a text looks like the id of a single batch, and return it.

    Otherwise, end the command with an error.
    """
    if text.startswith(GROUP_PREFIX):
        stop(f"{text} is several batches: use the id of one, which `batchwright status {text}` shows.")
    return _checked_id(text)


def _checked_ids(texts: list[str]) -> list[str]:
    return [_checked_id(text) for text in texts]


def id_argument(thing: str, example: str, list_command: str, metavar: str = "ID") -> ArgumentInfo:
    """Return the definition of a command-line argument that takes the id of one object.

    If the id is empty, the command ends with an error.

    Args:
        thing: kind of object that has the id, such as `schedule`.
        example: form of the ids, such as `schedule_...`.
        list_command: command that lists the ids, for the error message.
    """

    def checked(text: str) -> str:
        if not text.strip():
            stop(f"The {thing} id is empty: `batchwright {list_command}` shows all ids.")
        return text

    help = f"Id of the {thing}, {example}"
    return typer.Argument(metavar=metavar, help=help, show_default=False, callback=checked)


def _checked_endpoint(text: str) -> str:
    if text not in list(Endpoint):
        stop(f"--endpoint {text!r} is not supported. Supported endpoints are: {', '.join(Endpoint)}.")
    return text


def _checked_window(text: str) -> str:
    """Check the form of a completion window, and return it. The API decides which lengths are allowed."""
    if not is_window(text):
        stop(f"--window {text!r} is not a whole number followed by s, m, h or d, such as {DEFAULT_WINDOW}.")
    return text


def _checked_max_cost(text: str | None) -> str | None:
    try:
        if text is not None:
            parse_max_cost(text)
    except ValueError as error:
        stop(f"--max-cost {text!r} is not valid: {error}.")
    return text


def _checked_start(text: str | None) -> str | None:
    try:
        if text is not None:
            parse_start_time(start_value(text))
    except ValueError as error:
        stop(f"--start-at is not valid: {error}.")
    return text


def start_value(text: str) -> str | int:
    """Return a start time from the command line in the form that the API expects.

    Unix seconds become an integer. Any other text is returned unchanged.
    """
    return int(text) if text.isascii() and text.isdecimal() else text


EndpointOption = Annotated[
    str, typer.Option("--endpoint", help="Endpoint of the requests.", callback=_checked_endpoint)
]
WindowOption = Annotated[
    str,
    typer.Option("--window", help="Completion window: 30m, 6h, 24h, 7d.", callback=_checked_window),
]
MaxCost = Annotated[
    str | None,
    typer.Option(
        metavar="AMOUNT",
        help="Stop sending once the batch has cost this much; in the currency of the prices.",
        show_default=False,
        callback=_checked_max_cost,
    ),
]
StartAt = Annotated[
    str | None,
    typer.Option(
        "--start-at",
        metavar="TIME",
        help="Start later: 2026-12-01T02:00:00Z, or Unix seconds. The window counts from then.",
        show_default=False,
        callback=_checked_start,
    ),
]
BatchId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Id of the batch, batch_...", show_default=False, callback=_checked_batch_id
    ),
]
BatchOrGroup = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Id of the batch, batch_..., or of a group, group_...",
        show_default=False,
        callback=_checked_id,
    ),
]
BatchesOrGroups = Annotated[
    list[str],
    typer.Argument(
        metavar="ID",
        help="Ids of ended batches, batch_..., or of groups, group_...",
        show_default=False,
        callback=_checked_ids,
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="Address of the API; its key is BATCHWRIGHT_API_KEY. [BATCHWRIGHT_URL]",
        show_default=False,
    ),
]
Tenant = Annotated[
    str | None,
    typer.Option("--tenant", help="Tenant, sent as X-Tenant. [BATCHWRIGHT_TENANT]", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print the JSON that the API returned.")]
JsonLine = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
Interval = Annotated[
    float, typer.Option("--interval", min=0.05, help="Seconds between polls, if the API sends no events.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the batch has ended; exit as `status` does.")]


def key_value_pairs(texts: Sequence[str] | None, option: str) -> dict[str, str] | None:
    """Parse a repeatable option `--option key=value` into a dict; None if the option was not given.

    If a text does not have this form, end the command with an error that names `option`.
    """
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            stop(f"{option} {text!r} is not {'key' if option == '--metadata' else 'name'}=value.")
        pairs[key] = value
    return pairs or None


@contextmanager
def api_client(url: str | None, tenant: str | None) -> Generator[Client]:
    """Context manager that yields an API client.

    If a call of the API fails in the block, the command ends with a short error.

    Args:
        url: address of the API; None for the configured address.
        tenant: tenant for which requests are sent; None for the configured tenant.
    """
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
def explain_unknown_model(model: str) -> Generator[None]:
    """Context manager that ends the command with a clear error if the API does not know `model`."""
    try:
        yield
    except ClientError as error:
        if error.code != "model_not_found":
            raise
        stop_unknown_model(model)


def stop_unknown_model(model: str) -> NoReturn:
    stop(f"There is no model {model}; `batchwright models` lists them.")


def settings_or_stop(**options: str | None) -> Settings:
    """Load and return the settings. If a setting is wrong, end the command with a one-sentence error.

    Args:
        options: values of command-line options, by the names of settings. Each value except None replaces the
            setting.
    """
    try:
        return load(**{name: value for name, value in options.items() if value is not None})
    except SettingsError as error:
        message = str(error)
        for name, value in options.items():
            if value is not None:  # the user gave the option, so the message names it instead of the variable
                message = message.replace(f"BATCHWRIGHT_{name.upper()} ", f"--{name} ")
        stop(message)
