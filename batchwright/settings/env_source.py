"""Sources of settings: the caller's overrides come first, then environment variables."""

import json

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

from batchwright.rules.json_text import unique_keys


class EnvironmentSource(EnvSettingsSource):
    """Reads settings from environment variables. Unlike pydantic-settings, it decodes only set variables."""

    def prepare_field_value(
        self, field_name: str, field: FieldInfo, value: object, value_is_complex: bool
    ) -> object:
        if value is None:
            return None
        return super().prepare_field_value(field_name, field, value, value_is_complex)

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: str) -> object:
        """Return the value of a list or map from its JSON text.

        Raises:
            RepeatedKey: an object in it has a key twice.
            ValueError: the text is not JSON.
        """
        return json.loads(value, object_pairs_hook=unique_keys)


class EnvironmentSettings(BaseSettings):
    """Settings that are read only from environment variables.

    `.env` files and secret directories are not read, because that would double the time to load.
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
