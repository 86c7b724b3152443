"""Where settings come from: what the caller says, then the environment."""

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource


class SetVariables(EnvSettingsSource):
    """The environment as pydantic-settings reads it, decoding what is set only."""

    def prepare_field_value(
        self, field_name: str, field: FieldInfo, value: object, value_is_complex: bool
    ) -> object:
        if value is None:
            return None
        return super().prepare_field_value(field_name, field, value, value_is_complex)


class FromEnvironment(BaseSettings):
    """Looks for no `.env` and no directory of secrets, which take as long as the environment."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, SetVariables(settings_cls)
