"""Check which stored keys and certificates an operator's change of a model at run time may use.

The registry file decides which host receives a stored key or client certificate. A change at run time can
send requests to another host, but must never send a stored key or certificate there.
"""

from collections.abc import Sequence, Set
from typing import NamedTuple
from urllib.parse import urlsplit

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig

_ONLY_IN_THE_FILE = ("api_key_file", "api_key_env")
_AS_IN_THE_FILE = ("api_key_name", "tls_ca_cert_file", "tls_client_cert_file", "tls_client_key_file")
_SECRETS = (*_ONLY_IN_THE_FILE, *_AS_IN_THE_FILE, "tls_insecure_skip_verify")
_GATEWAY_FIELDS = GatewayConfig.model_fields.keys() - BackendConfig.model_fields.keys()
_SHOWN_CHARACTERS = 80  # maximum characters of a value in a message


class CredentialMisuse(NamedTuple):
    """A setting of a backend that names an API key or certificate which this backend must not use.

    Attributes:
        backend: index of the backend in its model.
        field: name of the setting that must be changed.
        message: describes the problem and the remedy.
    """

    backend: int
    field: str
    message: str


def find_misuse(config: ModelConfig, trusted: Sequence[BackendConfig]) -> CredentialMisuse | None:
    """Return the first API key or certificate that the model must not use; None if there is none.

    Args:
        config: configuration of the model.
        trusted: the backends in the registry file and in the settings.
    """
    for number, backend in enumerate(config.backends):
        if found := _find_in_backend(backend, trusted):
            return CredentialMisuse(number, *found)
    return None


def without_misuse(config: ModelConfig, trusted: Sequence[BackendConfig]) -> tuple[ModelConfig, list[str]]:
    """Return a model without forbidden credentials, and one message for each changed backend.

    If a backend has a forbidden credential, all keys and TLS settings of this backend are removed.

    Call this for each model that an operator has registered or changed at run time. If the registry file has
    changed since then, it can forbid a credential that the model already uses.

    Args:
        config: configuration of the model.
        trusted: the backends in the registry file and in the settings.
    """
    problems: list[str] = []
    backends = [*config.backends]
    for number, backend in enumerate(backends):
        if found := _find_in_backend(backend, trusted):
            field, message = found
            text = f"{field} of the backend {backend.url}: {message}"
            problems.append(f"{text}; until then no key or certificate is sent there")
            plain = backend.model_dump(exclude={*_SECRETS, *_GATEWAY_FIELDS}, exclude_defaults=True)
            backends[number] = BackendConfig.model_validate(plain)
    return (config.model_copy(update={"backends": backends}) if problems else config), problems


def _find_in_backend(backend: BackendConfig, trusted: Sequence[BackendConfig]) -> tuple[str, str] | None:
    if any(backend.url == other.url and _secrets(backend) == _secrets(other) for other in trusted):
        return None  # the backend is exactly as in the file
    found = _find_not_in_file(backend, trusted) or _find_other_host(backend, trusted)
    if not found and backend.tls_insecure_skip_verify and _has_secret(backend, trusted):
        text = "at run time it cannot be set for a backend that gets a stored key or client certificate"
        return (
            "tls_insecure_skip_verify",
            f"{text}, because a machine in between could then read it: set it in the file",
        )
    return found


def _find_not_in_file(backend: BackendConfig, trusted: Sequence[BackendConfig]) -> tuple[str, str] | None:
    """Return the first credential that a backend configured at run time must not use; None if there is none.

    The result has the name of the setting and a message. These credentials are forbidden:

    - `api_key_file` and `api_key_env`, because only the registry file may set them.
    - `api_key_name` and the TLS files, if no backend in `trusted` has the same value.

    Args:
        backend: configuration of the backend.
        trusted: the backends in the registry file and in the settings.
    """
    for name in _ONLY_IN_THE_FILE:
        if getattr(backend, name):
            return name, "it is for the registry's file only; use an api_key_name that the file uses"
    for name in _AS_IN_THE_FILE:
        value, known = getattr(backend, name), {getattr(other, name) for other in trusted}
        if value and value not in known:
            names = ", ".join(sorted(known - {""})) or "none"
            text = (
                f"{_shown(value)} is not in the registry's file; at run time only values that the file uses"
            )
            return name, f"{text} are allowed ({names}): add it there first"
    return None


def _find_other_host(backend: BackendConfig, trusted: Sequence[BackendConfig]) -> tuple[str, str] | None:
    for name in ("api_key_name", "tls_client_cert_file"):
        if value := getattr(backend, name):
            owners = [other for other in trusted if getattr(other, name) == value]
            at_host = [other for other in owners if _is_same_host(backend, other)]
            if not at_host:
                return name, _other_host_message(backend, value, owners)
            if backend.tls_ca_cert_file not in {other.tls_ca_cert_file for other in at_host}:
                text = f"the registry's file has another authority for the host that gets {_shown(value)}"
                return "tls_ca_cert_file", f"{text}: change it there"
    return None


def _has_secret(backend: BackendConfig, trusted: Sequence[BackendConfig]) -> bool:
    """Return True if requests to the backend may contain a credential.

    There are three such cases:

    - The backend's configuration names an API key or a client certificate.
    - The backend is a gateway (a backend for all models). It gets the key BATCHWRIGHT_BACKEND_API_KEY.
    - A backend in `trusted` has the same URL, and a header with the same name and value. The value of this
      header may be a credential.

    Args:
        backend: configuration of the backend.
        trusted: the backends in the registry file and in the settings.
    """
    headers = _headers_of(backend)
    return any(other.url == backend.url and headers & _headers_of(other) for other in trusted) or bool(
        isinstance(backend, GatewayConfig)
        or backend.api_key_name
        or backend.api_key_file
        or backend.api_key_env
        or backend.tls_client_cert_file
    )


def _headers_of(backend: BackendConfig) -> Set[tuple[str, str]]:
    return backend.headers.items() | backend.batch_headers.items()


def _secrets(backend: BackendConfig) -> list[object]:
    return [getattr(backend, name) for name in _SECRETS]


def _is_same_host(backend: BackendConfig, other: BackendConfig) -> bool:
    """Return True if `backend` may get the credentials of `other`, because both have the same host.

    The ports may differ. Return False if `backend` uses http and `other` uses https, because the credentials
    would be sent unencrypted.
    """
    one, two = urlsplit(backend.url), urlsplit(other.url)
    return one.hostname == two.hostname and one.scheme in (two.scheme, "https")


def _other_host_message(backend: BackendConfig, value: str, owners: Sequence[BackendConfig]) -> str:
    urls = [urlsplit(other.url) for other in owners]
    hosts = ", ".join(sorted({f"{url.scheme}://{url.hostname}" for url in urls}))
    own = urlsplit(backend.url)
    at = _shown(f"{own.scheme}://{own.hostname}")
    return (
        f"{_shown(value)} is sent to {hosts} only, as the registry's file says; "
        f"the backend is at {at}: add it there first"
    )


def _shown(value: str) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
