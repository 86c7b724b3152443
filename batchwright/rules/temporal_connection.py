"""Check combinations of the settings of the Temporal connection, and parse references to encryption keys.

Each function raises ValueError with the reason if it refuses the settings.
"""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from batchwright.rules.loopback import is_loopback

_MEAN_TLS = ("temporal_tls_ca_file", "temporal_tls_cert_file", "temporal_tls_server_name")
_KEYS = ("temporal_api_key", "temporal_api_key_file")


def check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        raise ValueError("it is not host:port, such as temporal.example.com:7233")


def check_tls_disabled(chosen: Mapping[str, object]) -> None:
    """Check that TLS may be disabled, because no other setting needs it.

    Args:
        chosen: values of the other settings, by the settings' names.

    Raises:
        ValueError: a setting needs TLS, or an API key would be sent unencrypted to another host.
    """
    for name in _MEAN_TLS:
        if chosen.get(name):
            raise ValueError(f"BATCHWRIGHT_{name.upper()} is set, which means TLS")
    host = str(chosen.get("temporal_address")).rpartition(":")[0]
    for name in _KEYS:
        if chosen.get(name) and not is_loopback(host):
            raise ValueError(f"BATCHWRIGHT_{name.upper()} is set and would be sent unencrypted")


def check_single_api_key(path: object, chosen: Mapping[str, object]) -> None:
    if path and chosen.get("temporal_api_key"):
        raise ValueError("BATCHWRIGHT_TEMPORAL_API_KEY is also set: set only one of them")


def check_client_certificate(path: object, chosen: Mapping[str, object]) -> None:
    if bool(path) != bool(chosen.get("temporal_tls_cert_file")):
        raise ValueError("set it together with BATCHWRIGHT_TEMPORAL_TLS_CERT_FILE, and one of them is unset")


_KEY_REFERENCE = re.compile(r"(?P<id>[A-Za-z0-9._-]{1,64})=(?P<kind>file|env):(?P<place>.+)", re.DOTALL)


class KeyReference(NamedTuple):
    """A reference to an encryption key: where the key is stored, but not the key itself.

    Attributes:
        id: name of the key, which is stored with the data that it has encrypted.
        kind: `file` or `env`.
        place: path of the file, or name of the environment variable.
    """

    id: str  # stored with every payload that was encrypted with the key
    kind: Literal["file", "env"]
    place: str


def parse_key_references(references: list[str]) -> list[KeyReference]:
    """Parse references of the form `id=file:PATH` or `id=env:NAME`. Return them in the given order.

    Raises:
        ValueError: a reference has another form, or two references have the same id.
    """
    found = [_parse_reference(text) for text in references]
    ids = [reference.id for reference in found]
    for key_id in ids:
        if ids.count(key_id) > 1:
            raise ValueError(f"two keys have the id {key_id!r}")
    return found


def _parse_reference(text: str) -> KeyReference:
    match = _KEY_REFERENCE.fullmatch(text)
    if match is None:
        # The message does not quote the reference, because it may be the key itself.
        raise ValueError("a key is not given as id=file:PATH or id=env:NAME")
    kind: Literal["file", "env"] = "file" if match["kind"] == "file" else "env"
    return KeyReference(match["id"], kind, match["place"])
