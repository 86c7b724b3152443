"""Builds the objects that /admin/models and /admin/model-configs return: the settings of a model."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field, JsonValue

from batchwright.contracts.api_objects.operator import (
    BackendObject,
    ModelSettingsObject,
    RegisteredBackend,
    RegisteredModel,
    SettingObject,
)
from batchwright.inference.registry.effective_settings import (
    SettingWithSource,
    change_without_header_values,
    effective_backends,
    effective_settings,
)
from batchwright.inference.registry.model_catalog import CatalogEntry
from batchwright.settings import Settings


class ModelConfigBody(BaseModel):
    """Body of PUT /admin/model-configs: settings of a model, such as the number of retries of a request.

    If the body lacks a setting, or has null for it, an earlier change of this setting is undone.
    """

    model_type: Literal["sync", "async"] | None = None
    poll_endpoint_template: str | None = None
    id_field: str | None = None
    poll_interval: float | str | None = None
    max_poll_time: float | str | None = None
    max_retries: int | None = Field(default=None, ge=0)


class ModelConfigObject(BaseModel):
    """How requests to a model are sent. `overridden` lists the settings that were changed at run time."""

    model: str
    model_type: Literal["sync", "async"]
    poll_endpoint_template: str | None
    id_field: str | None
    poll_interval: float
    max_poll_time: float
    max_retries: int
    overridden: list[str]
    changed_at: datetime | None
    version: int


# Path of each setting of /admin/model-configs in a model's configuration.
SETTING_PATHS = {
    "model_type": ("kind",),
    "poll_endpoint_template": ("jobs", "poll_endpoint_template"),
    "id_field": ("jobs", "id_field"),
    "poll_interval": ("jobs", "poll_interval"),
    "max_poll_time": ("jobs", "max_poll_time"),
    "max_retries": ("retries", "max_attempts"),
}


def model_settings_object(entry: CatalogEntry, settings: Settings) -> ModelSettingsObject:
    return ModelSettingsObject(
        model=entry.model,
        source=entry.source,
        version=entry.change.version if entry.change else 0,
        changed_at=entry.changed_at,
        settings=_setting_objects(effective_settings(entry, settings)),
        backends=[
            BackendObject(url=backend.url, origin=backend.origin, settings=_setting_objects(backend.settings))
            for backend in effective_backends(entry, settings)
        ],
        change=change_without_header_values(entry),
        problems=[*entry.problems],
    )


def registered_model(entry: CatalogEntry) -> RegisteredModel:
    config = entry.config
    backends = [
        RegisteredBackend(url=backend.url, weight=backend.weight, model=backend.model or None)
        for backend in config.backends
    ]
    return RegisteredModel(
        model=entry.model,
        source=entry.source,
        version=entry.change.version if entry.change else 0,
        changed_at=entry.changed_at,
        backends=backends,
        aliases=config.aliases,
        fallbacks=config.fallbacks,
        load_balancing=config.load_balancing,
        kind=config.kind,
        jobs=None if config.kind == "sync" else config.jobs,
        problems=[*entry.problems],
    )


def model_config_object(entry: CatalogEntry, settings: Settings) -> ModelConfigObject:
    jobs, found = entry.config.jobs, effective_settings(entry, settings)
    change = change_without_header_values(entry) or {}
    attempts = found["retries.max_attempts"].value
    return ModelConfigObject(
        model=entry.model,
        model_type="sync" if entry.config.kind == "sync" else "async",
        poll_endpoint_template=jobs.poll_endpoint_template or None,
        id_field=jobs.id_field or None,
        poll_interval=jobs.poll_interval,
        max_poll_time=jobs.max_poll_time,
        max_retries=attempts - 1 if isinstance(attempts, int) else 0,
        overridden=[name for name, path in SETTING_PATHS.items() if _value_at(change, path) is not None],
        changed_at=entry.changed_at,
        version=entry.change.version if entry.change else 0,
    )


def _value_at(fields: Mapping[str, JsonValue], path: tuple[str, ...]) -> JsonValue:
    here: JsonValue = dict(fields)
    for name in path:
        here = here.get(name) if isinstance(here, dict) else None
    return here


def _setting_objects(found: Mapping[str, SettingWithSource]) -> dict[str, SettingObject]:
    return {name: SettingObject(value=value, origin=origin) for name, (value, origin) in found.items()}
