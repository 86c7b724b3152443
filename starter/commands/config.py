"""`batchwright config show`: the settings of this process."""

import json as jsonlib

import typer
from rich.table import Table

from batchwright.settings import SettingsError
from starter.operate.configuration import Configuration, configuration
from starter.options import JsonLine, settings_or_stop
from starter.output import print_json, stdout, stop
from starter.tables import plain

config = typer.Typer(
    help="Show the settings.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@config.callback()
def settings() -> None:
    """Show the settings. They come from BATCHWRIGHT_* variables."""


@config.command()
def show(
    json: JsonLine = False,
    all_settings: bool = typer.Option(False, "--all", help="Also those that are at their default."),
) -> None:
    """Show the settings in effect, secrets hidden.

    The fingerprint is equal where everything is that workers and API should agree on.
    """
    try:
        found = configuration(settings_or_stop())
    except SettingsError as error:
        stop(str(error))
    if json:
        print_json(found)
    else:
        stdout().print(_table(found, all_settings))
        print(f"fingerprint {found.fingerprint}, version {found.version}")


def _table(found: Configuration, all_settings: bool) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    table.add_column(style="dim", no_wrap=True)
    for setting in found.settings:
        if all_settings or setting.source != "default":
            value = setting.value if isinstance(setting.value, str) else jsonlib.dumps(setting.value)
            table.add_row(setting.name, plain(value), setting.source)
    return table
