"""Which settings of a connection to Temporal fit together; each check raises ValueError with the reason."""

import ipaddress
from collections.abc import Mapping

_MEAN_TLS = ("temporal_tls_ca_file", "temporal_tls_cert_file", "temporal_tls_server_name")
_KEYS = ("temporal_api_key", "temporal_api_key_file")


def is_loopback(host: str) -> bool:
    """Of a name or an address, with or without the brackets of IPv6."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        raise ValueError("it is not host:port, such as temporal.example.com:7233")


def check_plaintext(chosen: Mapping[str, object]) -> None:
    """That TLS may be off beside the other settings, by name."""
    for name in _MEAN_TLS:
        if chosen.get(name):
            raise ValueError(f"BATCHWRIGHT_{name.upper()} is set, which means TLS")
    host = str(chosen.get("temporal_address")).rpartition(":")[0]
    for name in _KEYS:
        if chosen.get(name) and not is_loopback(host):
            raise ValueError(f"BATCHWRIGHT_{name.upper()} is set, and would cross the network readable")


def check_one_key(path: object, chosen: Mapping[str, object]) -> None:
    if path and chosen.get("temporal_api_key"):
        raise ValueError("BATCHWRIGHT_TEMPORAL_API_KEY is set too, and there can be only one key")


def check_pair(path: object, chosen: Mapping[str, object]) -> None:
    if bool(path) != bool(chosen.get("temporal_tls_cert_file")):
        raise ValueError("it goes together with BATCHWRIGHT_TEMPORAL_TLS_CERT_FILE, and one of them is unset")
