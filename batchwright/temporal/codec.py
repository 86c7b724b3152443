"""Encrypts and decrypts payloads: the arguments and results of workflows and activities in Temporal.

The cipher is AES-256-GCM. Temporal's encryption samples use the same format: the metadata of an encrypted
payload has the encoding `binary/encrypted` and the id of the key. The data is a nonce of 12 bytes, followed
by the encrypted payload. Unencrypted payloads are read unchanged.
"""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from batchwright.rules.key_references import KeyReference, parse_key_references
from batchwright.settings import Settings, SettingsError, from_environment

ENCODING = b"binary/encrypted"
KEY_ID = "encryption-key-id"
_KEY_BYTES = 32
_NONCE_BYTES = 12


class PayloadDecryptionError(Exception):
    """Raised if a payload cannot be decrypted. The message names the key that encrypted the payload."""


@dataclass(frozen=True)
class PayloadKey:
    id: str
    cipher: AESGCM
    check: str  # start of a digest: it differs between keys and reveals no key

    @classmethod
    def of(cls, key_id: str, secret: bytes) -> "PayloadKey":
        check = hmac.digest(secret, b"batchwright key check", hashlib.sha256).hex()[:8]
        return cls(key_id, AESGCM(secret), check)


class EncryptionCodec(PayloadCodec):
    """A codec that encrypts Temporal's payloads with the first of `keys`, and decrypts them with any of
    `keys`.

    Unencrypted payloads are returned unchanged by `decode`.
    """

    def __init__(self, keys: Sequence[PayloadKey]) -> None:
        self._first = keys[0]
        self._keys: Mapping[str, PayloadKey] = {key.id: key for key in keys}

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._encrypt(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return the payloads, decrypted if they are encrypted.

        Raises PayloadDecryptionError if a key is missing or a payload is damaged.
        """
        return decrypt_payloads(payloads, self._keys)

    def _encrypt(self, payload: Payload) -> Payload:
        nonce = os.urandom(_NONCE_BYTES)
        data = nonce + self._first.cipher.encrypt(nonce, payload.SerializeToString(), None)
        return Payload(metadata={"encoding": ENCODING, KEY_ID: self._first.id.encode()}, data=data)


class KeylessCodec(PayloadCodec):
    """A codec for a process without keys. It does not encrypt payloads, and it rejects encrypted payloads."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return the payloads unchanged. Raises PayloadDecryptionError if a payload is encrypted."""
        return decrypt_payloads(payloads, {})


def decrypt_payloads(payloads: Iterable[Payload], keys: Mapping[str, PayloadKey]) -> list[Payload]:
    """Return the payloads, decrypted if they are encrypted. `keys` maps key ids to keys.

    Raises PayloadDecryptionError if a key is missing or a payload is damaged.
    """
    return [_decrypt(payload, keys) for payload in payloads]


def build_codec(settings: Settings) -> PayloadCodec:
    """Return the codec for Temporal's payloads: the arguments and results of workflows and activities.

    It encrypts payloads if keys for payloads are configured. Raises SettingsError if a key cannot be read or
    is invalid.
    """
    keys = load_keys(settings)
    return EncryptionCodec(keys) if keys else KeylessCodec()


def load_keys(settings: Settings) -> list[PayloadKey]:
    """Return the keys that encrypt payloads, from the setting BATCHWRIGHT_PAYLOAD_KEYS and in its order.

    Raises:
        SettingsError: a key cannot be read or is invalid. The message has the id of the key, never its value.
    """
    references = parse_key_references(settings.payload_keys)
    return [PayloadKey.of(reference.id, _decode_secret(reference)) for reference in references]


def _decrypt(payload: Payload, keys: Mapping[str, PayloadKey]) -> Payload:
    if payload.metadata.get("encoding") != ENCODING:
        return payload
    key_id = payload.metadata.get(KEY_ID, b"").decode(errors="replace")
    key = keys.get(key_id)
    if key is None:
        raise PayloadDecryptionError(
            f"The payload is encrypted with the key {key_id!r}, which BATCHWRIGHT_PAYLOAD_KEYS lacks."
        )
    try:
        plain = key.cipher.decrypt(payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:], None)
        return Payload.FromString(plain)
    except (InvalidTag, DecodeError, ValueError) as error:
        raise PayloadDecryptionError(
            f"The payload cannot be decrypted with the key {key_id!r} of BATCHWRIGHT_PAYLOAD_KEYS: it is "
            "damaged, or another key has the same id."
        ) from error


def _decode_secret(reference: KeyReference) -> bytes:
    text = _read_key(reference)
    for decode in (base64.b64decode, bytes.fromhex):
        try:
            secret = decode(text)
        except (ValueError, binascii.Error):
            continue
        if len(secret) == _KEY_BYTES:
            return secret
    raise _key_error(
        reference, "it is not 32 bytes in base64 or hex; `openssl rand -base64 32` creates a key"
    )


def _read_key(reference: KeyReference) -> str:
    if reference.kind == "env":
        text = from_environment(reference.place)
        if not text:
            raise _key_error(reference, f"the variable {reference.place} is not set")
        return text.strip()
    try:
        return Path(reference.place).read_text("ascii").strip()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise _key_error(reference, f"{reference.place} cannot be read: {reason}") from error
    except UnicodeDecodeError:
        raise _key_error(reference, f"{reference.place} is not text") from None


def _key_error(reference: KeyReference, reason: str) -> SettingsError:
    return SettingsError(f"BATCHWRIGHT_PAYLOAD_KEYS is wrong: the key {reference.id!r}: {reason}.")
