"""Check combinations of the settings of the Temporal connection.

Each function raises ValueError with the reason if it refuses the settings.
"""

from collections.abc import Mapping

from batchwright.rules.loopback import is_loopback

_MEAN_TLS = ("temporal_tls_ca_file", "temporal_tls_cert_file", "temporal_tls_server_name")
_KEYS = ("temporal_api_key", "temporal_api_key_file")


def check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        raise ValueError("it is not host:port, such as temporal.example.com:7233")


def check_tls_disabled(chosen: Mapping[str, object]) -> None:
    """Check that TLS may be disabled: no other setting of the Temporal connection needs TLS.

    Args:
        chosen: values of the other settings, by name.

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
