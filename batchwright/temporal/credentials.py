"""What a connection to Temporal is made with: certificates and API key, from where settings say."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from temporalio.service import TLSConfig

from batchwright.settings import Settings, SettingsError

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class Credentials:
    """Equal where a connection made with the one is as good as one made with the other."""

    tls: TLSConfig | None = None
    api_key: str | None = field(default=None, repr=False)

    @property
    def expires_at(self) -> datetime | None:
        """When our certificate does, if there is one."""
        if self.tls is None or self.tls.client_cert is None:
            return None
        return x509.load_pem_x509_certificate(self.tls.client_cert).not_valid_after_utc


def read(settings: Settings) -> Credentials:
    """As the files are now. Blocks for as long as the disk does.

    Raises:
        SettingsError: a file cannot be read or is not what it should be; the sentence names both.
    """
    return Credentials(_tls(settings), _api_key(settings))


def _api_key(settings: Settings) -> str | None:
    if settings.temporal_api_key is not None:
        return _as_header("temporal_api_key", settings.temporal_api_key.get_secret_value()) or None
    if settings.temporal_api_key_file is None:
        return None
    path = settings.temporal_api_key_file
    text = _content("temporal_api_key_file", path).decode(errors="replace")
    key = _as_header("temporal_api_key_file", text.strip())
    if not key:
        raise _wrong("temporal_api_key_file", f"{path} is empty")
    return key


def _as_header(name: str, key: str) -> str:
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise _wrong(name, "a key is one word of ASCII characters")
    return key


def _tls(settings: Settings) -> TLSConfig | None:
    authorities = _optional("temporal_tls_ca_file", settings.temporal_tls_ca_file)
    if authorities is not None:
        _parsed("temporal_tls_ca_file", "no PEM certificate", x509.load_pem_x509_certificates, authorities)
    certificate, key = _pair(settings)
    wanted = (authorities, certificate, settings.temporal_tls_server_name, _has_api_key(settings))
    if settings.temporal_tls is False or (settings.temporal_tls is None and not any(wanted)):
        return None
    return TLSConfig(
        server_root_ca_cert=authorities,
        domain=settings.temporal_tls_server_name or None,
        client_cert=certificate,
        client_private_key=key,
    )


def _pair(settings: Settings) -> tuple[bytes | None, bytes | None]:
    certificate = _optional("temporal_tls_cert_file", settings.temporal_tls_cert_file)
    key = _optional("temporal_tls_key_file", settings.temporal_tls_key_file)
    if certificate is None or key is None:
        return None, None
    public = _parsed(
        "temporal_tls_cert_file", "no PEM certificate", x509.load_pem_x509_certificate, certificate
    )
    private = _parsed("temporal_tls_key_file", "no unencrypted PEM private key", _private_key, key)
    if _bytes_of(public.public_key()) != _bytes_of(private.public_key()):
        raise _wrong("temporal_tls_key_file", "the key does not belong to BATCHWRIGHT_TEMPORAL_TLS_CERT_FILE")
    return certificate, key


def _private_key(pem: bytes) -> PrivateKeyTypes:
    return serialization.load_pem_private_key(pem, password=None)


def _bytes_of(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _parsed(name: str, fault: str, parse: Callable[[bytes], _Parsed], content: bytes) -> _Parsed:
    try:
        return parse(content)
    except (ValueError, TypeError) as error:  # TypeError: the key is encrypted
        raise _wrong(name, f"there is {fault} in the file") from error


def _optional(name: str, path: Path | None) -> bytes | None:
    return None if path is None else _content(name, path)


def _content(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise _wrong(name, f"{path} cannot be read: {reason}") from error


def _has_api_key(settings: Settings) -> bool:
    return bool(settings.temporal_api_key or settings.temporal_api_key_file)


def _wrong(name: str, reason: str) -> SettingsError:
    return SettingsError(f"BATCHWRIGHT_{name.upper()} is wrong: {reason}.")
