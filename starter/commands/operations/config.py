"""`batchwright config show`: shows the settings in effect and their fingerprint."""

import json as jsonlib
from importlib.metadata import version

import typer
from pydantic import BaseModel, JsonValue
from rich.table import Table

from batchwright.settings import Settings, SettingsError, from_environment
from batchwright.settings_fingerprint import public_values, settings_fingerprint
from batchwright.starter.options import JsonLine, command_group, settings_or_stop
from batchwright.starter.output import escaped, print_json, stdout, stop


class EffectiveSetting(BaseModel):
    name: str
    value: JsonValue
    source: str  # environment or default


class Configuration(BaseModel):
    version: str
    fingerprint: str
    settings: list[EffectiveSetting]


def configuration(chosen: Settings) -> Configuration:
    """Return all settings, and a fingerprint (hash) of the settings. Secrets are hidden.

    The field `source` of a setting is `environment` or `default`.

    Raises:
        SettingsError: a key that encrypts payloads of Temporal cannot be read.
    """
    values = public_values(chosen)
    shown: list[EffectiveSetting] = []
    for name, value in values.items():
        variable = f"BATCHWRIGHT_{name.upper()}"
        source = "environment" if from_environment(variable) else "default"
        shown.append(EffectiveSetting(name=variable, value=value, source=source))
    fingerprint = settings_fingerprint(chosen)
    return Configuration(version=version("batchwright"), fingerprint=fingerprint, settings=shown)


config = command_group("Show the settings.")


@config.callback()
def settings() -> None:
    """Show the settings, which come from BATCHWRIGHT_* variables."""


@config.command()
def show(
    json: JsonLine = False,
    all_settings: bool = typer.Option(False, "--all", help="Include settings at their default."),
) -> None:
    """Show the settings in effect, secrets hidden.

    The fingerprint is a hash of all settings that must be equal in workers and API.
    """
    try:
        found = configuration(settings_or_stop())
    except SettingsError as error:
        stop(str(error))
    if json:
        print_json(found)
    else:
        table = Table.grid(padding=(0, 2))
        table.add_column(overflow="fold")
        table.add_column(overflow="fold")
        table.add_column(style="dim", no_wrap=True)
        for setting in found.settings:
            if all_settings or setting.source != "default":
                value = setting.value if isinstance(setting.value, str) else jsonlib.dumps(setting.value)
                table.add_row(setting.name, escaped(value), setting.source)
        stdout().print(table)
        print(f"fingerprint {found.fingerprint}, version {found.version}")
