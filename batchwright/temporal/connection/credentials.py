"""Credentials of a Temporal connection: certificates and API key, from the settings and their files."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from temporalio.service import TLSConfig

from batchwright.settings import Settings, SettingsError

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class Credentials:
    """TLS settings and API key for a connection to Temporal.

    `tls` is None if the connection does not use TLS. `api_key` is None if there is no API key. Two objects
    are equal if their credentials are the same.
    """

    tls: TLSConfig | None
    api_key: str | None = field(repr=False)

    @property
    def expires_at(self) -> datetime | None:
        """Time when the client certificate expires; None if there is no client certificate."""
        if self.tls is None or self.tls.client_cert is None:
            return None
        return x509.load_pem_x509_certificate(self.tls.client_cert).not_valid_after_utc


def read(settings: Settings) -> Credentials:
    """Read the credentials from the settings, and from the files that the settings name. This call blocks.

    Raises:
        SettingsError: a file cannot be read or is invalid. The message names the setting and the file.
    """
    return Credentials(_tls(settings), _api_key(settings))


def _api_key(settings: Settings) -> str | None:
    if settings.temporal_api_key is not None:
        return _as_header("temporal_api_key", settings.temporal_api_key.get_secret_value()) or None
    if settings.temporal_api_key_file is None:
        return None
    path = settings.temporal_api_key_file
    text = _read_file("temporal_api_key_file", path).decode(errors="replace")
    key = _as_header("temporal_api_key_file", text.strip())
    if not key:
        raise _setting_error("temporal_api_key_file", f"{path} is empty")
    return key


def _as_header(name: str, key: str) -> str:
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise _setting_error(name, "a key is one word of ASCII characters")
    return key


def _tls(settings: Settings) -> TLSConfig | None:
    authorities = _read_optional("temporal_tls_ca_file", settings.temporal_tls_ca_file)
    if authorities is not None:
        _parse("temporal_tls_ca_file", "no PEM certificate", x509.load_pem_x509_certificates, authorities)
    certificate, key = _read_client_certificate(settings)
    has_api_key = bool(settings.temporal_api_key or settings.temporal_api_key_file)
    wanted = (authorities, certificate, settings.temporal_tls_server_name, has_api_key)
    if settings.temporal_tls is False or (settings.temporal_tls is None and not any(wanted)):
        return None
    return TLSConfig(
        server_root_ca_cert=authorities,
        domain=settings.temporal_tls_server_name or None,
        client_cert=certificate,
        client_private_key=key,
    )


def _read_client_certificate(settings: Settings) -> tuple[bytes | None, bytes | None]:
    certificate = _read_optional("temporal_tls_cert_file", settings.temporal_tls_cert_file)
    key = _read_optional("temporal_tls_key_file", settings.temporal_tls_key_file)
    if certificate is None or key is None:
        return None, None
    public = _parse(
        "temporal_tls_cert_file", "no PEM certificate", x509.load_pem_x509_certificate, certificate
    )
    read_key = partial(serialization.load_pem_private_key, password=None)
    private = _parse("temporal_tls_key_file", "no unencrypted PEM private key", read_key, key)
    if _bytes_of(public.public_key()) != _bytes_of(private.public_key()):
        raise _setting_error(
            "temporal_tls_key_file", "the key does not belong to BATCHWRIGHT_TEMPORAL_TLS_CERT_FILE"
        )
    return certificate, key


def _bytes_of(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _parse(name: str, fault: str, parse: Callable[[bytes], _Parsed], content: bytes) -> _Parsed:
    try:
        return parse(content)
    except (ValueError, TypeError) as error:  # TypeError: the key is encrypted
        raise _setting_error(name, f"there is {fault} in the file") from error


def _read_optional(name: str, path: Path | None) -> bytes | None:
    return None if path is None else _read_file(name, path)


def _read_file(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise _setting_error(name, f"{path} cannot be read: {reason}") from error


def _setting_error(name: str, reason: str) -> SettingsError:
    return SettingsError(f"BATCHWRIGHT_{name.upper()} is wrong: {reason}.")
