"""Find the settings that are in effect for a model, and where each comes from. Secrets are left out."""

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import BaseModel, JsonValue

from batchwright.contracts.model_registry.backend_config import HEADER_SETTINGS, BackendConfig
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig, SettingSource
from batchwright.inference.registry.model_catalog import CatalogEntry
from batchwright.rules.backends.registry_changes import ModelSettings, merge_settings, non_default_settings
from batchwright.settings import Settings
from batchwright.settings.worker_settings import ModelLimits

_SECTIONS = ("retries", "limits")
_DEFAULT_MODEL_LIMITS = ModelLimits.model_validate({})
# Settings of the process, which apply if the registry does not set a value.
_PROCESS_SETTINGS = {
    "retries.max_attempts": "max_attempts",
    "retries.initial_backoff": "initial_backoff_seconds",
    "retries.max_backoff": "max_backoff_seconds",
    "retries.give_up_after": "give_up_after_seconds",
    "limits.in_flight": "model_in_flight",
    "limits.capacity_fraction": "capacity_fraction",
    "request_timeout": "request_timeout_seconds",
    "connect_timeout": "connect_timeout_seconds",
}


class SettingWithSource(NamedTuple):
    value: JsonValue
    origin: SettingSource


class EffectiveBackend(NamedTuple):
    url: str
    origin: SettingSource
    settings: Mapping[str, SettingWithSource]


def effective_settings(entry: CatalogEntry, settings: Settings) -> dict[str, SettingWithSource]:
    """Return the settings of a model that are in effect, each with its source, such as a file or a change.

    The keys are dotted names, such as `limits.in_flight`. Settings of `jobs` are included only if the model's
    requests run as jobs. Settings of `prices` are included only if the model has prices.

    Args:
        entry: the model in the catalog of all models.
        settings: the settings of the process.
    """
    sections = (*_SECTIONS, "jobs") if entry.config.kind != "sync" else _SECTIONS
    sections = sections if entry.config.prices is None else (*sections, "prices")
    others = (*_SECTIONS, "jobs", "prices", "backends")
    names = [name for name in ModelConfig.model_fields if name not in others]
    found = {name: _setting_in_effect(entry, settings, entry.config, (name,)) for name in names}
    for section in sections:
        part: BaseModel = getattr(entry.config, section)
        for name in type(part).model_fields:
            found[f"{section}.{name}"] = _setting_in_effect(entry, settings, part, (section, name))
    return found


def effective_backends(entry: CatalogEntry, settings: Settings) -> list[EffectiveBackend]:
    """Return the model's backends in their configured order, and where each of their settings comes from."""
    return [_effective_backend(entry, settings, backend) for backend in entry.config.backends]


def change_without_header_values(entry: CatalogEntry) -> ModelSettings | None:
    """Return the settings that an operator has changed for a model at run time, with header values hidden.

    Return None if the operator has not changed the model.
    """
    if entry.change is None:
        return None
    patch, config = entry.change.patch, entry.change.config
    fields = dict(patch if patch is not None else non_default_settings(config) if config is not None else {})
    backends = fields.get("backends")
    if isinstance(backends, list):
        fields["backends"] = [_hide_header_values(backend) for backend in backends]
    return fields


def _hide_header_values(backend: JsonValue) -> JsonValue:
    if not isinstance(backend, dict):
        return backend
    hidden: dict[str, JsonValue] = {
        name: dict.fromkeys(headers, "(hidden)")
        for name in HEADER_SETTINGS
        if isinstance(headers := backend.get(name), dict)
    }
    return {**backend, **hidden}


def _setting_in_effect(
    entry: CatalogEntry, settings: Settings, holder: BaseModel, path: tuple[str, ...]
) -> SettingWithSource:
    value, name = getattr(holder, path[-1]), ".".join(path)
    if _is_set(_changed_settings(entry), path):
        return SettingWithSource(value, "change")
    base = None if _replaces_model(entry) else entry.base or entry.config
    if base is not None and _is_set(non_default_settings(base), path):
        return SettingWithSource(value, "file")
    return _process_setting(name, entry.model, value, settings)


def _effective_backend(entry: CatalogEntry, settings: Settings, backend: BackendConfig) -> EffectiveBackend:
    source = entry.base_source if entry.base is not None else entry.source
    before = [] if _replaces_model(entry) else (entry.base or entry.config).backends
    known = next(
        (other for other in before if (other.url, other.model) == (backend.url, backend.model)), None
    )
    known = known or next((other for other in before if other.url == backend.url), None)
    own = {} if known is None else known.model_dump(exclude_defaults=True)
    wanted = backend.model_dump(exclude_defaults=True)
    origin: SettingSource = "listing" if source == "listing" else "file"
    found: dict[str, SettingWithSource] = {}
    for name, value in backend:
        if name == "url" or name not in BackendConfig.model_fields:
            continue
        shown = sorted(value) if name in HEADER_SETTINGS else value
        if wanted.get(name) != own.get(name):
            found[name] = SettingWithSource(shown, "change" if entry.change else "file")
        elif name in own:
            found[name] = SettingWithSource(shown, "file")
        else:
            found[name] = _process_setting(name, "", shown, settings)
    found["has_api_key"] = _has_api_key(backend, settings)
    return EffectiveBackend(backend.url, "change" if known is None and entry.change else origin, found)


def _has_api_key(backend: BackendConfig, settings: Settings) -> SettingWithSource:
    named = backend.api_key_name or backend.api_key_file or backend.api_key_env
    if isinstance(backend, GatewayConfig) and not named and settings.registry is None:
        has = bool(settings.backend_api_key)
        return SettingWithSource(has, "environment" if has else "default")
    return SettingWithSource(bool(named), "file" if named else "default")


def _process_setting(name: str, model: str, value: JsonValue, settings: Settings) -> SettingWithSource:
    own = settings.models.get(model)
    limit = name.removeprefix("limits.")
    if own is not None and name != limit and getattr(own, limit, None) and limit in own.model_fields_set:
        return SettingWithSource(getattr(own, limit), "environment")
    setting = _PROCESS_SETTINGS.get(name)
    if setting is not None:
        origin: SettingSource = "environment" if setting in settings.model_fields_set else "default"
        return SettingWithSource(getattr(settings, setting), origin)
    if name in ("limits.inputs_per_request", "limits.input_tokens_per_request"):
        return SettingWithSource(getattr(_DEFAULT_MODEL_LIMITS, limit), "default")
    return SettingWithSource(value, "default")


def _changed_settings(entry: CatalogEntry) -> ModelSettings:
    if entry.change is None:
        return {}
    if entry.change.config is not None:
        return non_default_settings(entry.change.config)
    return merge_settings({}, entry.change.patch or {})


def _replaces_model(entry: CatalogEntry) -> bool:
    """Return True if an operator's change at run time replaces all settings of the model, not only some."""
    return entry.change is not None and entry.change.config is not None


def _is_set(fields: ModelSettings, path: tuple[str, ...]) -> bool:
    here: JsonValue = fields
    for name in path:
        if not isinstance(here, dict) or name not in here:
            return False
        here = here[name]
    return True
