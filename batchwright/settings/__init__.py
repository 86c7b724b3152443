"""Every knob: unit, default, environment name, a file for each subject. Nothing else reads the environment.

A setting `x_y` comes from `BATCHWRIGHT_X_Y`, those of `otel.py` from the names OpenTelemetry gave
them. Wrong ones are named by `load()`, before anything listens.
"""

import os
import re

from pydantic import ValidationError, field_validator
from pydantic_settings import SettingsConfigDict
from pydantic_settings.exceptions import SettingsError as UnreadableSetting

from batchwright.contracts.registry import RegistryConfig
from batchwright.rules import added_headers
from batchwright.settings.access import AccessSettings
from batchwright.settings.api import ApiSettings
from batchwright.settings.batches import BatchSettings
from batchwright.settings.errors import HIDDEN_VALUE, SettingsError, not_json, what_is_wrong
from batchwright.settings.inference import InferenceSettings
from batchwright.settings.limits import LimitSettings
from batchwright.settings.observation import ObservationSettings
from batchwright.settings.otel import OtelSettings, variable
from batchwright.settings.retention import RetentionSettings
from batchwright.settings.sources import FromEnvironment
from batchwright.settings.storage import StorageSettings
from batchwright.settings.temporal import TemporalSettings
from batchwright.settings.worker import WorkerSettings

__all__ = ["SECRETS", "Settings", "SettingsError", "from_environment", "load", "registry_of"]

_MOST = 2**63 - 1  # what a column holds
_MOST_SECONDS = 1_000_000_000  # 31 years
_SHOWN = 300

# Never shown, whole or in messages.
SECRETS = frozenset(
    {
        "api_key",
        "backend_api_key",
        "callback_secret",
        "database_url",
        "otel_exporter_otlp_headers",
        "otel_exporter_otlp_traces_headers",
        "payload_keys",
        "temporal_api_key",
    }
)


# The documentation's order is the reverse.
class Settings(
    OtelSettings,
    WorkerSettings,
    InferenceSettings,
    RetentionSettings,
    BatchSettings,
    LimitSettings,
    ObservationSettings,
    ApiSettings,
    AccessSettings,
    TemporalSettings,
    StorageSettings,
    FromEnvironment,
):
    """All of them, read at start and frozen."""

    model_config = SettingsConfigDict(
        env_prefix="BATCHWRIGHT_", extra="ignore", frozen=True, populate_by_name=True
    )

    @field_validator("*")
    @classmethod
    def _finite(cls, value: object) -> object:
        """Durations become deadlines, and numbers columns: none may be beyond what those hold."""
        if isinstance(value, float) and not abs(value) <= _MOST_SECONDS:
            raise ValueError(f"it must be at most {_MOST_SECONDS:,}")
        if isinstance(value, int) and abs(value) > _MOST:
            raise ValueError(f"it must be at most {_MOST:,}")
        return value


def from_environment(name: str) -> str:
    """A variable that a setting refers to by its name; empty where it is not set."""
    return os.environ.get(name, "")


def load(**overrides: object) -> Settings:
    """The settings of this process: `overrides` first, then the environment, then defaults.

    Raises:
        SettingsError: one sentence naming the setting and what is wrong with it.
    """
    settings = _settings(overrides)
    registry_of(settings)
    return settings


def registry_of(settings: Settings) -> RegistryConfig | None:
    """What `registry` says now; None where it is not set. Raises SettingsError."""
    if settings.registry is None:
        return None
    if settings.backends:
        raise SettingsError(
            "BATCHWRIGHT_REGISTRY and BATCHWRIGHT_BACKENDS are both set: take one of them away, "
            "the registry's file says all that the other does."
        )
    # Imported when it is used: most commands have no registry, and reading YAML takes a while to import.
    from batchwright.settings.registry import read_registry

    config = read_registry(settings.registry, settings.secrets_dir)
    for name, model in config.models.items():
        if model.kind == "callback" and not settings.takes_callbacks:
            raise SettingsError(
                f"BATCHWRIGHT_REGISTRY: {settings.registry}: models.{name}.kind: callback needs "
                "BATCHWRIGHT_CALLBACK_URL and BATCHWRIGHT_CALLBACK_SECRET: set both."
            )
    if said := _header_clash(config, settings.dispatch_header):
        raise SettingsError(f"BATCHWRIGHT_REGISTRY: {settings.registry}: {said}.")
    return config


def _header_clash(config: RegistryConfig, dispatch_header: str) -> str:
    """Of what the registry adds to requests; empty: there is none."""
    if config.gateway is not None:
        said = added_headers.problem(config.gateway, "of the gateway", dispatch_header)
        return said and f"gateway, headers: {said}"
    for name, model in config.models.items():
        if found := added_headers.clash(name, model, dispatch_header):
            place = (
                "jobs.callback_header" if found.backend is None else f"backends, entry {found.backend + 1}"
            )
            return f"models.{name}.{place}: {found.message}"
    return ""


def _settings(overrides: dict[str, object]) -> Settings:
    try:
        return Settings(**overrides)  # pyright: ignore[reportArgumentType]
    except ValidationError as error:
        first = error.errors()[0]
        name = variable(str(first["loc"][0]))
        # A secret that landed in a wrong place must not land in a log too.
        hidden = first["type"] == HIDDEN_VALUE or not SECRETS.isdisjoint(
            str(part).lower() for part in first["loc"]
        )
        value = "" if hidden else f" (it is {_short(repr(first['input']))})"
        raise SettingsError(f"{name} is wrong: {what_is_wrong(first)}{value}.") from None
    except UnreadableSetting as error:
        # Of a list or map; the field's name is only in the message.
        name = "".join(re.findall(r'field "(\w+)"', str(error)))
        form = not_json(Settings.model_fields[name].annotation)
        raise SettingsError(f"{variable(name)} is wrong: {form}.") from None


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
