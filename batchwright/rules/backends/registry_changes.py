"""The model registry in effect: the models in the registry file, plus changes made at run time.

An operator's change is either the whole configuration of a model, or a patch with only some settings. A patch
is merged setting by setting:

- A null removes a setting that an earlier change has set.
- A list replaces the whole earlier list.
- The list `backends` names all backends of the model. If a backend was also in the earlier list, the settings
  that the patch does not mention stay unchanged.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256

from pydantic import JsonValue, TypeAdapter, ValidationError

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.config_base import RegistryEntry
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig
from batchwright.contracts.model_registry.stored_models import ModelChange


def effective_models(
    configured: Mapping[str, ModelConfig], changes: Mapping[str, ModelConfig | None]
) -> dict[str, ModelConfig]:
    """Return all models in effect, by name: those in the registry file, with the changes made at run time.

    Args:
        configured: the models in the registry file, by name.
        changes: the models that an operator has set at run time, by name. Such a model replaces the model of
            the same name in the file. None removes the model.
    """
    merged = {**configured, **changes}
    return {name: model for name, model in sorted(merged.items()) if model is not None}


def registry_fingerprint(
    configured: Mapping[str, ModelConfig],
    gateways: Sequence[BackendConfig],
    changes: Sequence[ModelChange],
) -> str:
    """Return a short hash of the model registry in effect.

    Processes with the same registry get the same hash.

    Args:
        configured: the models in the registry file.
        gateways: the backends that serve all models.
        changes: the changes of models that operators have made at run time.
    """
    patches = {row.model: row.patch for row in changes if row.patch is not None}
    models = effective_models(configured, {row.model: row.config for row in changes if row.patch is None})
    content = {
        "gateways": [gateway.model_dump(mode="json") for gateway in gateways],
        "models": {name: model.model_dump(mode="json") for name, model in models.items()},
        "patches": patches,
    }
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


ModelSettings = dict[str, JsonValue]
MODEL_SETTINGS = TypeAdapter(ModelSettings)
_BACKENDS = "backends"
_GATEWAY_ONLY = {"retries", "limits", "prices"}  # settings of the gateway's models, not of the connection


class _Gateways(RegistryEntry):
    """A validator for one gateway in a model's list of backends.

    A gateway is a backend that serves all models. `backends` has one entry: the index of the gateway in the
    model's list, and the gateway. So error messages show this index.
    """

    backends: dict[int, GatewayConfig]


def merge_settings(before: Mapping[str, JsonValue], patch: Mapping[str, JsonValue]) -> ModelSettings:
    """Return the settings `before` with the changes in `patch`.

    Each value in `patch` has one of these effects:

    - Null removes the value in `before`.
    - An object is merged with the object in `before` field by field, by the same rules.
    - The list `backends` names all backends of the result. If a backend was also in the list in `before`, the
      settings that the patch does not mention stay unchanged.
    - Any other value, such as another list, replaces the value in `before`.
    """
    result = dict(before)
    for name, value in patch.items():
        known = before.get(name)
        if value is None:
            result.pop(name, None)
        elif name == _BACKENDS and isinstance(value, list):
            result[name] = _merge_backends(known if isinstance(known, list) else [], value)
        elif isinstance(value, dict):
            result[name] = merge_settings(known if isinstance(known, dict) else {}, value)
            if not result[name]:
                del result[name]
        else:
            result[name] = value
    return result


def apply_patch(base: ModelConfig, patch: Mapping[str, JsonValue]) -> ModelConfig:
    """Return the model `base` with the settings in `patch` applied.

    Raises:
        ValidationError: the resulting model is invalid.
    """
    fields = merge_settings(non_default_settings(base), patch)
    if patch.get("kind") == "sync" and "jobs" not in patch:
        fields.pop("jobs", None)  # these settings belong to the previous kind of model
    gateways = {backend.url: backend for backend in base.backends if isinstance(backend, GatewayConfig)}
    entries = fields.get(_BACKENDS)
    if not gateways or not isinstance(entries, list):
        return ModelConfig.model_validate(fields)
    backends = [_with_gateway(gateways, number, entry) for number, entry in enumerate(entries)]
    return ModelConfig.model_validate({**fields, _BACKENDS: backends})


def non_default_settings(config: ModelConfig) -> ModelSettings:
    """Return the settings of a model that differ from their defaults, as JSON values."""
    return MODEL_SETTINGS.validate_python(
        config.model_dump(mode="json", exclude_defaults=True, exclude={_BACKENDS: {"__all__": _GATEWAY_ONLY}})
    )


def _with_gateway(gateways: Mapping[str, GatewayConfig], number: int, entry: JsonValue) -> object:
    found = gateways.get(str(entry.get("url"))) if isinstance(entry, dict) else None
    if found is None:
        return entry
    merged = _Gateways.model_validate({_BACKENDS: {number: entry}}).backends[number]
    return merged.model_copy(update={name: getattr(found, name) for name in _GATEWAY_ONLY})


def _merge_backends(before: Sequence[JsonValue], entries: Sequence[JsonValue]) -> list[JsonValue]:
    unused = [known for known in before if isinstance(known, dict)]
    result: list[JsonValue] = []
    for entry in entries:
        if not isinstance(entry, dict):
            result.append(entry)  # validation will report the error
            continue
        url = _normal_url(entry.get("url"))
        known = next((known for known in unused if _is_same(known, url, entry)), None)
        if known is not None:
            unused.remove(known)
        merged = merge_settings(known or {}, entry)
        result.append({**merged, "url": url} if "url" in merged else merged)
    return result


def _is_same(known: ModelSettings, url: JsonValue, entry: ModelSettings) -> bool:
    same_model = entry.get("model") is None or entry["model"] == known.get("model", "")
    return _normal_url(known.get("url")) == url and same_model


def _normal_url(url: JsonValue) -> JsonValue:
    """Return a URL in its normalized form, so that URLs can be compared.

    The configuration of a backend uses the same form. A value that is not a URL is returned unchanged.
    """
    try:
        return BackendConfig.model_validate({"url": url}).url
    except ValidationError:
        return url
