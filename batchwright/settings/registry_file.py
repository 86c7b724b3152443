"""Read and check the registry file, the YAML file that lists models and their backends."""

import os
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.backend_job_config import JobConfig
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.model_registry.registry_config import (
    GatewayConfig,
    LimitConfig,
    ModelConfig,
    RegistryConfig,
    RetryConfig,
)
from batchwright.settings.error_messages import SettingsError, describe_requirement

_MOST_BYTES = 4 * 1024 * 1024
_KEYS: dict[str, type[BaseModel]] = {
    "backends": BackendConfig,
    "gateway": GatewayConfig,
    "jobs": JobConfig,
    "limits": LimitConfig,
    "models": ModelConfig,
    "prices": PriceConfig,
    "retries": RetryConfig,
}


class SecretUnreadable(Exception):
    """Raised if an API key or a certificate cannot be read.

    The message names the file or the variable, and the reason.
    """


def read_registry(path: Path, secrets_dir: Path) -> RegistryConfig:
    """Read the registry file at `path`, and check that its API keys and certificates can be read.

    Args:
        secrets_dir: directory of files with API keys. In the registry file, `api_key_name` is the name of
            such a file.

    Raises:
        SettingsError: the registry file cannot be read or is invalid, or one of its API keys or certificates
            cannot be read. The message names the position in the file and the remedy.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"BATCHWRIGHT_REGISTRY: {path} cannot be read: {error.strerror}.") from None
    if len(text) > _MOST_BYTES:
        raise SettingsError(f"BATCHWRIGHT_REGISTRY: {path} is larger than {_MOST_BYTES} bytes.")
    try:
        found: object = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise SettingsError(f"BATCHWRIGHT_REGISTRY: {path}: {_describe_yaml_error(error)}.") from None
    except RecursionError:
        raise SettingsError(f"BATCHWRIGHT_REGISTRY: {path}: it is nested too deeply.") from None
    try:
        config = RegistryConfig.model_validate(found)
    except ValidationError as error:
        raise SettingsError(f"BATCHWRIGHT_REGISTRY: {path}: {describe_first_error(error)}.") from None
    for place, backend in iter_backends(config):
        try:
            check_files(backend, secrets_dir)
        except SecretUnreadable as error:
            raise SettingsError(f"BATCHWRIGHT_REGISTRY: {path}: {place}: {error}.") from None
    return config


def iter_backends(config: RegistryConfig) -> Iterator[tuple[str, BackendConfig]]:
    """Yield each backend of the registry as a pair (position in the registry file, backend).

    The position is a text for messages, such as "models.llama.backends, entry 1".
    """
    if config.gateway is not None:
        yield "gateway", config.gateway
    for name, model in config.models.items():
        for number, backend in enumerate(model.backends, 1):
            yield f"models.{name}.backends, entry {number}", backend


def describe_first_error(error: ValidationError) -> str:
    """Return a sentence, without a full stop, on the first error in the registry file and its remedy."""
    first = error.errors()[0]
    place = _place(first["loc"])
    return f"{place}: {describe_remedy(first)}" if place else describe_remedy(first)


def api_key(backend: BackendConfig, secrets_dir: Path) -> str:
    """Return the API key of a backend, from a file or an environment variable; "" if none is configured.

    If the backend has an `api_key_name`, the file with this name in `secrets_dir` contains the key.

    Raises:
        SecretUnreadable: the key cannot be read, or it is not one line of printable ASCII.
    """
    if backend.api_key_env:
        value = os.environ.get(backend.api_key_env, "")
        if not value:
            raise SecretUnreadable(f"api_key_env names {backend.api_key_env}, which is not set: set it")
        return _key(value, "api_key_env")
    path = key_file(backend, secrets_dir)
    if path is None:
        return ""
    where = "api_key_name" if backend.api_key_name else "api_key_file"
    return _key(_read(path, where), where)


def key_file(backend: BackendConfig, secrets_dir: Path) -> Path | None:
    """Return the path of the file with the backend's API key; None if the key is not in a file.

    If the backend has an `api_key_name`, the file has this name and is in `secrets_dir`.
    """
    if backend.api_key_name:
        return secrets_dir / backend.api_key_name
    return Path(backend.api_key_file) if backend.api_key_file else None


def check_files(backend: BackendConfig, secrets_dir: Path) -> None:
    """Raise SecretUnreadable if the backend's API key or a certificate cannot be read.

    If the backend has an `api_key_name`, the file with this name in `secrets_dir` contains the key.
    """
    api_key(backend, secrets_dir)
    for name in ("tls_ca_cert_file", "tls_client_cert_file", "tls_client_key_file"):
        if path := getattr(backend, name):
            _read(Path(path), name)


def _read(path: Path, name: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise SecretUnreadable(
            f"{name} names {path}, which cannot be read ({error.strerror}): mount it, or correct the name"
        ) from None
    except UnicodeDecodeError:
        raise SecretUnreadable(f"{name} names {path}, which is not text") from None
    except ValueError:  # a NUL
        raise SecretUnreadable(f"{name} names {str(path)!r}, which is not a path: correct it") from None


def _key(value: str, name: str) -> str:
    key = value.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise SecretUnreadable(f"{name} leads to no key: it must be one line of printable ASCII")
    return key


_KINDS = {"int": "a whole number", "float": "a number", "timestamp": "a date"}


class _Loader(yaml.SafeLoader):
    """A YAML loader that rejects mappings with the same key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is a list or a map: it must be a name", key.start_mark
                )
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} comes twice: merge the two or rename one", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """Return the Python value of a YAML node.

        Raises ConstructorError, with the position in the file, if the value is invalid.
        """
        try:
            return super().construct_object(node, deep)  # pyright: ignore[reportUnknownMemberType]
        except (ValueError, OverflowError):
            kind = node.tag.rpartition(":")[2]
            message = f"this is read as {_KINDS.get(kind, kind)} and is none: correct it, or put it in quotes"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark) from None


def _describe_yaml_error(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem or 'it is not YAML'}"
    return "it is not YAML"


def _place(loc: Sequence[int | str]) -> str:
    """Return where in the registry file an error is, as text such as "models.llama.backends, entry 1"."""
    text = ""
    for number, part in enumerate(loc):
        if part == "[key]":
            continue
        if isinstance(part, int) and loc[number + 1 : number + 2] == ("[key]",):
            text += f".{part}"
        elif isinstance(part, int):
            text += f", entry {part + 1}"
        else:
            text += ("." if text and not text[-1].isdigit() else ", " if text else "") + part
    return text


def describe_remedy(error: ErrorDetails, within: Sequence[str] = ()) -> str:
    """Return how to correct an error in the registry, as text for messages.

    Args:
        error: an error that pydantic has found in a part of the registry. The error's path `loc` begins at
            this part.
        within: path from the whole registry to this part; empty if the part is the whole registry.
    """
    match error["type"]:
        case "extra_forbidden":
            return f"this key is not known; there are {', '.join(_known([*within, *error['loc'][:-1]]))}"
        case "missing":
            return "it must be given"
        case "value_error":
            return error["msg"].removeprefix("Value error, ")
        case "string_type" if error["loc"][-1] == "[key]":
            return "YAML reads this name as something else: put it in quotes"
        case _:
            return f"it must {describe_requirement(error)}"


def _known(loc: Sequence[int | str]) -> list[str]:
    """Return the names of all keys that are valid at a position in the registry file."""
    names = [part for part in loc if isinstance(part, str)]
    if not names:
        return sorted(RegistryConfig.model_fields)
    if names[0] == "models" and len(names) == 2:
        return sorted(ModelConfig.model_fields)
    return sorted(_KEYS[names[-1]].model_fields)
