"""Sources of settings. The caller's overrides take precedence over environment variables."""

import json

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

from batchwright.rules.json_text import unique_keys


class EnvironmentSource(EnvSettingsSource):
    """Reads settings from environment variables.

    Unlike its base class, it does not decode JSON for variables that are not set.
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
    """Base class of settings that come only from the caller's arguments and from environment variables.

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
