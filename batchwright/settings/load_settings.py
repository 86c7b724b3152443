"""Read the settings and the registry file, and check that they do not contradict each other.

`load` reports invalid settings before the process accepts connections.
"""

import json
import os
import re

from pydantic import ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings.exceptions import SettingsError as UnreadableSetting

from batchwright.contracts.model_registry.registry_config import RegistryConfig
from batchwright.rules.backends import request_headers
from batchwright.rules.json_text import RepeatedKey, unique_keys
from batchwright.settings.api_settings import AccessSettings, ApiSettings
from batchwright.settings.backend_settings import BackendSettings
from batchwright.settings.batch_settings import BatchSettings, RetentionSettings
from batchwright.settings.error_messages import (
    HIDDEN_VALUE,
    SettingsError,
    describe_error,
    describe_invalid_json,
)
from batchwright.settings.observability_settings import ObservabilitySettings, OtelSettings, variable_name
from batchwright.settings.size_and_quota_settings import SizeAndQuotaSettings
from batchwright.settings.storage_settings import StorageSettings
from batchwright.settings.temporal_settings import TemporalSettings
from batchwright.settings.webhook_settings import WebhookSettings
from batchwright.settings.worker_settings import WorkerSettings

_MAX_INTEGER = 2**63 - 1  # largest value of a database column
_MAX_SECONDS = 1_000_000_000  # 31 years
_MAX_VALUE_CHARS = 300
_USER_INFO = re.compile(r"//[^/\s'\"]*@")  # user in a URL, possibly with a password

# Settings whose values are never shown, not even in error messages.
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


class EnvironmentSource(EnvSettingsSource):
    """A source that reads settings from environment variables.

    A setting whose variable is not set keeps its default. Without this class, such a setting would raise an
    error, because the base class decodes the missing value as JSON.
    """

    def prepare_field_value(
        self, field_name: str, field: FieldInfo, value: object, value_is_complex: bool
    ) -> object:
        if value is None:
            return None
        return super().prepare_field_value(field_name, field, value, value_is_complex)

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: str) -> object:
        """Return the list or map that the JSON text `value` contains.

        Raises:
            RepeatedKey: a JSON object in the text has the same key twice.
            ValueError: the text is not JSON.
        """
        return json.loads(value, object_pairs_hook=unique_keys)


class EnvironmentSettings(BaseSettings):
    """A base class of settings that come only from the caller's arguments and from environment variables.

    `.env` files and directories of secrets are not read, because reading them would double the loading time.
    """

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, EnvironmentSource(settings_cls)


class Settings(
    OtelSettings,
    WorkerSettings,
    BackendSettings,
    RetentionSettings,
    BatchSettings,
    SizeAndQuotaSettings,
    WebhookSettings,
    ObservabilitySettings,
    ApiSettings,
    AccessSettings,
    TemporalSettings,
    StorageSettings,
    EnvironmentSettings,
):
    """All settings of one process. They are read when the process starts, and never change after that."""

    model_config = SettingsConfigDict(
        env_prefix="BATCHWRIGHT_", extra="ignore", frozen=True, populate_by_name=True
    )

    @field_validator("*")
    @classmethod
    def _finite(cls, value: object) -> object:
        """Check that the value of a setting is small enough for deadlines and database columns.

        Return the value unchanged. Raise ValueError if it is a number that is too large, infinite or NaN.
        """
        if isinstance(value, float) and not abs(value) <= _MAX_SECONDS:
            raise ValueError(f"it must be at most {_MAX_SECONDS:,}")
        if isinstance(value, int) and abs(value) > _MAX_INTEGER:
            raise ValueError(f"it must be at most {_MAX_INTEGER:,}")
        return value


def from_environment(name: str) -> str:
    """Return the value of the environment variable `name`, or "" if it is not set."""
    return os.environ.get(name, "")


def load(**overrides: object) -> Settings:
    """Read and check all settings, and return them.

    Values in `overrides` take precedence over environment variables. Environment variables take precedence
    over defaults.

    Raises:
        SettingsError: a setting or the registry file is invalid. The message names the setting and the
            reason.
    """
    settings = _read_settings(overrides)
    load_registry(settings)
    return settings


def load_registry(settings: Settings) -> RegistryConfig | None:
    """Read the registry file, which lists models and backends, and check that it fits the settings.

    Return None if the setting `registry` is not set.

    Raises:
        SettingsError: the file is invalid, or it contradicts another setting.
    """
    if settings.registry is None:
        return None
    if settings.backends:
        raise SettingsError(
            "BATCHWRIGHT_REGISTRY and BATCHWRIGHT_BACKENDS are both set: unset one of them. "
            "The registry file can express everything that the other does."
        )
    # Imported only if needed: most commands have no registry, and importing YAML takes a while.
    from batchwright.settings.registry_file import read_registry

    config = read_registry(settings.registry, settings.secrets_dir)
    for name, model in config.models.items():
        if model.kind == "callback" and not settings.takes_callbacks:
            raise SettingsError(
                f"BATCHWRIGHT_REGISTRY: {settings.registry}: models.{name}.kind: callback needs "
                "BATCHWRIGHT_CALLBACK_URL and BATCHWRIGHT_CALLBACK_SECRET: set both."
            )
    if problem := _describe_header_conflict(config, settings.dispatch_header):
        raise SettingsError(f"BATCHWRIGHT_REGISTRY: {settings.registry}: {problem}.")
    return config


def require_backends(settings: Settings) -> None:
    """Raise SettingsError if no backend is configured. Without a backend, every line of a batch would fail.

    A backend is configured in the setting `backends` or `registry`.
    """
    if not settings.backends and settings.registry is None:
        raise SettingsError(
            "No backend is configured: set BATCHWRIGHT_BACKENDS to a JSON list of URLs, such as "
            '["http://127.0.0.1:8080"], or BATCHWRIGHT_REGISTRY to a registry file.'
        )


def _describe_header_conflict(config: RegistryConfig, dispatch_header: str) -> str:
    """Return a message about the first request header in the registry that cannot be used; "" if all can.

    A header cannot be used in these cases:

    - The same setting of a backend contains its name twice.
    - Batchwright itself sends a header with this name, such as `dispatch_header` or `jobs.callback_header`.
    """
    if config.gateway is not None:
        problem = request_headers.conflict_message(config.gateway, "of the gateway", dispatch_header)
        return problem and f"gateway, headers: {problem}"
    for name, model in config.models.items():
        if found := request_headers.find_conflict(name, model, dispatch_header):
            place = (
                "jobs.callback_header" if found.backend is None else f"backends, entry {found.backend + 1}"
            )
            return f"models.{name}.{place}: {found.message}"
    return ""


def _read_settings(overrides: dict[str, object]) -> Settings:
    try:
        return Settings(**overrides)  # pyright: ignore[reportArgumentType]
    except ValidationError as error:
        first = error.errors()[0]
        name = variable_name(str(first["loc"][0]))
        # The value of a secret must not appear in a log.
        parts = {str(part).lower() for part in first["loc"]}
        shown = repr(first["input"])
        hidden = first["type"] == HIDDEN_VALUE or not SECRETS.isdisjoint(parts) or _USER_INFO.search(shown)
        value = "" if hidden else f" (it is {_short(shown)})"
        raise SettingsError(f"{name} is wrong: {describe_error(first)}{value}.") from None
    except UnreadableSetting as error:
        # An invalid list or map; the field's name is only in the message.
        name = "".join(re.findall(r'field "(\w+)"', str(error)))
        cause = error.__cause__
        problem = (
            str(cause)
            if isinstance(cause, RepeatedKey)
            else describe_invalid_json(Settings.model_fields[name].annotation)
        )
        raise SettingsError(f"{variable_name(name)} is wrong: {problem}.") from None


def _short(text: str) -> str:
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}..."
