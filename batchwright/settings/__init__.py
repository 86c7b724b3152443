"""Every knob: unit, default, environment name, a file for each subject. Nothing else reads the environment.

A setting `x_y` comes from `BATCHWRIGHT_X_Y`, those of `otel.py` from the names OpenTelemetry gave
them. Wrong ones are named by `load()`, before anything listens.
"""

import os
import re

from pydantic import ValidationError
from pydantic_settings import SettingsConfigDict
from pydantic_settings.exceptions import SettingsError as UnreadableSetting

from batchwright.settings.access import AccessSettings
from batchwright.settings.api import ApiSettings
from batchwright.settings.batches import BatchSettings
from batchwright.settings.errors import not_json, what_is_wrong
from batchwright.settings.inference import InferenceSettings
from batchwright.settings.limits import LimitSettings
from batchwright.settings.observation import ObservationSettings
from batchwright.settings.otel import OtelSettings, variable
from batchwright.settings.retention import RetentionSettings
from batchwright.settings.storage import StorageSettings
from batchwright.settings.temporal import TemporalSettings
from batchwright.settings.worker import WorkerSettings

# Never shown, whole or in messages.
SECRETS = frozenset(
    {
        "api_key",
        "backend_api_key",
        "database_url",
        "otel_exporter_otlp_headers",
        "otel_exporter_otlp_traces_headers",
        "payload_keys",
        "temporal_api_key",
    }
)


class SettingsError(Exception):
    """A setting is wrong; the message names it and says what it may be."""


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
):
    """All of them, read at start and frozen."""

    model_config = SettingsConfigDict(
        env_prefix="BATCHWRIGHT_", extra="ignore", frozen=True, populate_by_name=True
    )


def from_environment(name: str) -> str:
    """A variable that a setting refers to by its name; empty where it is not set."""
    return os.environ.get(name, "")


def load(**overrides: object) -> Settings:
    """The settings of this process: `overrides` first, then the environment, then defaults.

    Raises:
        SettingsError: one sentence naming the setting and what is wrong with it.
    """
    try:
        return Settings(**overrides)  # pyright: ignore[reportArgumentType]
    except ValidationError as error:
        first = error.errors()[0]
        name = variable(str(first["loc"][0]))
        # A secret that landed in a wrong place must not land in a log too.
        hidden = not SECRETS.isdisjoint(str(part).lower() for part in first["loc"])
        value = "" if hidden else f" (it is {first['input']!r})"
        raise SettingsError(f"{name} is wrong: {what_is_wrong(first)}{value}.") from None
    except UnreadableSetting as error:
        # Of a list or map; the field's name is only in the message.
        name = "".join(re.findall(r'field "(\w+)"', str(error)))
        form = not_json(Settings.model_fields[name].annotation)
        raise SettingsError(f"{variable(name)} is wrong: {form}.") from None
