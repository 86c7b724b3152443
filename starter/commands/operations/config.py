"""`batchwright config show`: shows the settings in effect and their fingerprint."""

import hashlib
import json as jsonlib
from importlib.metadata import version

import typer
from pydantic import BaseModel, JsonValue
from rich.table import Table

from batchwright.database.pool import address
from batchwright.settings import SECRETS, Settings, SettingsError, from_environment
from batchwright.starter.options import JsonLine, settings_or_stop
from batchwright.starter.output import escaped, print_json, stdout, stop
from batchwright.temporal.codec import load_keys

# Settings of one process or of the command line, which may differ between processes of one installation.
_PER_PROCESS = frozenset(
    {
        *("auth", "auth_failures_per_minute", "tenant_header", "trusted_proxies"),
        *("api_host", "api_port", "api_key", "codec_host", "codec_port", "codec_origins", "metrics_host"),
        *("codec_trusted_network", "metrics_port", "log_format", "log_level", "spool_dir", "temporal_ui_url"),
        *("tenant", "url"),
    }
)


_REDACTED = "(secret)"


class EffectiveSetting(BaseModel):
    name: str
    value: JsonValue
    source: str  # environment or default


class Configuration(BaseModel):
    version: str
    fingerprint: str
    settings: list[EffectiveSetting]


def configuration(chosen: Settings) -> Configuration:
    """Return all settings with the source of each one, and a fingerprint of the settings. Secrets are hidden.

    Raises:
        SettingsError: a key that encrypts payloads of Temporal cannot be read.
    """
    values = _values(chosen)
    shown: list[EffectiveSetting] = []
    for name, value in values.items():
        variable = f"BATCHWRIGHT_{name.upper()}"
        source = "environment" if from_environment(variable) else "default"
        shown.append(EffectiveSetting(name=variable, value=value, source=source))
    fingerprint = _fingerprint(chosen, values)
    return Configuration(version=version("batchwright"), fingerprint=fingerprint, settings=shown)


def _values(chosen: Settings) -> dict[str, JsonValue]:
    values: dict[str, JsonValue] = jsonlib.loads(chosen.model_dump_json())
    hidden: dict[str, JsonValue] = {name: _REDACTED for name in SECRETS if values.get(name)}
    # `payload_keys` contains only references to keys. Settings that contain keys are rejected on load.
    shown: dict[str, JsonValue] = {
        "database_url": address(chosen.database_url),
        "payload_keys": [*chosen.payload_keys],
    }
    return {**values, **hidden, **shown}


def _fingerprint(chosen: Settings, values: dict[str, JsonValue]) -> str:
    """Return a hash (16 hex digits) of the version and of the settings that must be equal in all processes.

    The hash does not depend on the values of secrets, only on which secrets are set. For a key that encrypts
    payloads, it depends on the key's id and check value, which show if two keys are equal.

    Args:
        values: all settings by name, with secrets hidden.
    """
    matters: dict[str, JsonValue] = {
        name: value for name, value in values.items() if name not in _PER_PROCESS
    }
    matters["payload_keys"] = [f"{key.id} {key.check}" for key in load_keys(chosen)]
    matters["version"] = version("batchwright")
    return hashlib.sha256(jsonlib.dumps(matters, sort_keys=True).encode()).hexdigest()[:16]


config = typer.Typer(
    help="Show the settings.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
