"""Validates changes of the model registry (the list of models and their backends) at run time. Reads and
writes model versions in HTTP headers.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from fastapi import Request
from pydantic import ValidationError

from batchwright.api.errors import ApiError, invalid_value, missing_parameter
from batchwright.api.schemas.json_body import json_type_of, reject_unknown, wrong_type
from batchwright.api.schemas.model_registry import SETTING_PATHS
from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig, describe_duplicate_backend
from batchwright.database.errors import VersionConflict
from batchwright.rules.backends.registry_changes import MODEL_SETTINGS, ModelSettings
from batchwright.rules.backends.request_headers import find_conflict
from batchwright.rules.backends.stored_credentials import find_misuse
from batchwright.settings.registry_file import describe_remedy

_MAX_SHOWN_CHARACTERS = 80  # maximum characters of a value in an error message


def validated_config(model: str, build: Callable[[], ModelConfig]) -> ModelConfig:
    """Call `build`, which creates the configuration of a model, and return the configuration.

    Raises:
        ApiError: the configuration is not valid. The error shows the first problem.
    """
    try:
        config = build()
    except ValidationError as error:
        first = error.errors()[0]
    else:
        if problem := describe_duplicate_backend(config.backends, model):
            raise invalid_value("backends", f"Invalid value for 'backends': {problem}.")
        return config
    param, problem = _parameter_name(first["loc"]), describe_remedy(first, ("models", model))
    match first["type"]:
        case "missing":
            raise missing_parameter(param)
        case "extra_forbidden":
            raise ApiError(
                400, f"Unknown parameter: '{param}'; {problem}.", code="unknown_parameter", param=param
            )
        case _:
            raise invalid_value(
                param, f"Invalid value for '{param}': {problem}; it is {_shortened(first['input'])}."
            )


def reject_secret_misuse(config: ModelConfig, trusted: Sequence[BackendConfig]) -> None:
    """Check that a model's new configuration sends no stored API key or client certificate to other hosts.

    Stored means: in a file or an environment variable of this process.

    Args:
        config: the new configuration, which a client has requested.
        trusted: backends in the registry file and in the settings. Stored keys and certificates may be sent
            only to the hosts of these backends.

    Raises:
        ApiError: a backend in `config` uses a stored key or certificate that it must not use. Or the backend
            may use the key or certificate, but `config` turns off the verification of TLS certificates.
    """
    if found := find_misuse(config, trusted):
        place = f"backends[{found.backend}].{found.field}"
        raise invalid_value(place, f"Invalid value for '{place}': {found.message}.")


def reject_header_clash(model: str, config: ModelConfig, dispatch_header: str) -> None:
    """Check that the model's configuration sets no header that Batchwright itself sends to backends.

    Raises:
        ApiError: the configuration sets such a header.
    """
    if found := find_conflict(model, config, dispatch_header):
        place = "jobs" if found.backend is None else f"backends[{found.backend}]"
        place = f"{place}.{found.field}"
        raise invalid_value(place, f"Invalid value for '{place}': {found.message}.")


def _parameter_name(loc: Sequence[int | str]) -> str:
    """Convert the location of a pydantic error to the path of a field, such as `backends[0].weight`."""
    text = ""
    for part in loc:
        if part == "[key]":
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "backends"


def _shortened(value: object) -> str:
    """Return a value as short text for an error message.

    A list or object may contain secrets, so only the name of its type is returned.
    """
    if not isinstance(value, str | int | float):
        return json_type_of(value)
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}..."


def model_config_patch(fields: Mapping[str, object], base: ModelConfig | None) -> ModelSettings:
    """Convert the body of PUT /admin/model-configs to a change of settings.

    The result is nested like a `ModelConfig`. If a setting is missing or null in the body, the setting is
    null in the result. A null undoes an earlier change of the setting.

    If `model_type` is `async`, the model runs jobs. The body does not say whether workers poll for the
    results of jobs (`poll`) or backends report them (`callback`). If `base` runs jobs, the result has the
    same kind as `base`. Otherwise the kind is `poll`.

    Args:
        fields: the body.
        base: the model's configuration without changes made at run time; None if the model has no such
            configuration.

    Raises:
        ApiError: a field is unknown or not valid.
    """
    reject_unknown(fields, SETTING_PATHS)
    kind, retries = fields.get("model_type"), fields.get("max_retries")
    if kind not in (None, "sync", "async"):
        message = f"Invalid value for 'model_type': it must be 'sync' or 'async', not {kind!r}."
        raise invalid_value("model_type", message[:300])
    if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int)):
        raise wrong_type("max_retries", "an integer", retries)
    if isinstance(retries, int) and not 0 <= retries < 2**31:
        raise invalid_value("max_retries", "Invalid value for 'max_retries': it must be 0 or more.")
    values = dict(fields) | {"max_retries": None if retries is None else retries + 1}
    if kind == "async":
        values["model_type"] = base.kind if base is not None and base.kind != "sync" else "poll"
    patch: ModelSettings = {}
    for name, path in SETTING_PATHS.items():
        value: object = values.get(name)
        for part in reversed(path):
            value = {part: value}
        patch = _merged(patch, MODEL_SETTINGS.validate_python(value))
    return patch


def _merged(one: ModelSettings, other: ModelSettings) -> ModelSettings:
    """Combine two changes of settings into one change. If both contain the same setting, use the value in
    `other`, even if this value is null.
    """
    result = dict(one)
    for name, value in other.items():
        known = result.get(name)
        result[name] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return result


_TAG = re.compile(r'"(\d{1,18})"')


def etag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}


def expected_versions(request: Request) -> Sequence[int] | None:
    """Return the model versions that the header `If-Match` accepts; None if any version is accepted.

    Weak tags (`W/`) are ignored, because they never match. If there are only weak tags, the result is empty,
    so no version is accepted.

    Raises:
        ApiError: the header contains something other than tags of versions.
    """
    header = request.headers.get("if-match")
    if header is None or header.strip() == "*":
        return None
    tags = [tag.strip() for tag in header.split(",")]
    found = [_TAG.fullmatch(tag) for tag in tags if not tag.startswith("W/")]
    if not all(found):
        message = "Invalid value for 'If-Match': it must be an ETag of the model, with its quotation marks."
        raise invalid_value("If-Match", message)
    return [int(tag[1]) for tag in found if tag]


def version_conflict(model: str, conflict: VersionConflict) -> ApiError:
    message = (
        f"The model '{model}' was changed since you read it: its version is {conflict.present} now. "
        f'GET /admin/models/{model} shows it; repeat your change with If-Match: "{conflict.present}".'
    )
    headers = etag(conflict.present)
    return ApiError(412, message, code="version_conflict", param="If-Match", headers=headers)
