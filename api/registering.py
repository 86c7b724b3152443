"""What may be registered at run time: as in the registry's file, but without a way to other files."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from pydantic import ValidationError

from api.bodies import kind_of
from api.errors import ApiError, invalid_value, missing
from batchwright.contracts.registry import BackendConfig, ModelConfig, RegistryConfig
from batchwright.rules.added_headers import clash
from batchwright.settings.registry import backends_of, remedy

_NEVER = ("api_key_file", "api_key_env")
_AS_IN_THE_FILE = ("api_key_name", "tls_ca_cert_file", "tls_client_cert_file", "tls_client_key_file")
_SHOWN = 80  # characters of a value


def config_of(model: str, fields: Mapping[str, object]) -> ModelConfig:
    """The body of a request. Raises ApiError for what is wrong first."""
    try:
        return ModelConfig.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
    param, said = _param(first["loc"]), remedy(first, ("models", model))
    match first["type"]:
        case "missing":
            raise missing(param)
        case "extra_forbidden":
            raise ApiError(
                400, f"Unknown parameter: '{param}'; {said}.", code="unknown_parameter", param=param
            )
        case _:
            raise invalid_value(
                param, f"Invalid value for '{param}': {said}; it is {_shown(first['input'])}."
            )


def refuse_files(config: ModelConfig, file: RegistryConfig | None) -> None:
    """Raises ApiError: a request may send no file or variable of this machine to an address it names."""
    in_use = [backend for _, backend in backends_of(file)] if file else []
    for number, backend in enumerate(config.backends):
        place = f"backends[{number}]"
        for name in _NEVER:
            if getattr(backend, name):
                raise invalid_value(
                    f"{place}.{name}",
                    f"Invalid value for '{place}.{name}': it is for the registry's file only; "
                    "use an api_key_name that the file uses.",
                )
        for name in _AS_IN_THE_FILE:
            _check_use(place, name, backend, in_use)
        _check_host(place, backend, in_use)


def refuse_headers(model: str, config: ModelConfig, dispatch_header: str) -> None:
    """Raises ApiError where a header that is added to requests stands for one that Batchwright sends."""
    if found := clash(model, config, dispatch_header):
        place = "jobs.callback_header" if found.backend is None else f"backends[{found.backend}].headers"
        raise invalid_value(place, f"Invalid value for '{place}': {found.message}.")


def _check_use(place: str, name: str, backend: BackendConfig, in_use: Sequence[BackendConfig]) -> None:
    value, known = getattr(backend, name), {getattr(other, name) for other in in_use}
    if value and value not in known:
        names = ", ".join(sorted(known - {""})) or "none"
        raise invalid_value(
            f"{place}.{name}",
            f"Invalid value for '{place}.{name}': {_shown(value)} is not in the registry's file; at run time "
            f"only what the file uses may be named ({names}): add it there first.",
        )


def _check_host(place: str, backend: BackendConfig, in_use: Sequence[BackendConfig]) -> None:
    """A key goes to hosts that the file sends it to, on any port; to no http where that was https."""
    if not backend.api_key_name:
        return
    known = [urlsplit(other.url) for other in in_use if other.api_key_name == backend.api_key_name]
    url = urlsplit(backend.url)
    if any(url.hostname == other.hostname and url.scheme in (other.scheme, "https") for other in known):
        return
    hosts = ", ".join(sorted({f"{other.scheme}://{other.hostname}" for other in known}))
    where = _shown(f"{url.scheme}://{url.hostname}")
    raise invalid_value(
        f"{place}.api_key_name",
        f"Invalid value for '{place}.api_key_name': {_shown(backend.api_key_name)} is sent to {hosts} only, "
        f"as the registry's file says; the backend is at {where}: add it there first.",
    )


def _param(loc: Sequence[int | str]) -> str:
    """backends[0].weight"""
    text = ""
    for part in loc:
        if part == "[key]":
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "backends"


def _shown(value: object) -> str:
    """Short, and of what has parts only the kind: there may be a secret in it."""
    if not isinstance(value, str | int | float):
        return kind_of(value)
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
