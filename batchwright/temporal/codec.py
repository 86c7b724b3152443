"""Encryption of payloads with AES-256-GCM; what is written is what Temporal's own samples write.

A payload becomes one of encoding `binary/encrypted`, with the key's id beside it; its data are a nonce of
12 bytes and the sealed original. Payloads that are not encrypted are read as they are.
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

from batchwright.rules.keyring import KeyReference, key_references
from batchwright.settings import Settings, SettingsError, from_environment

ENCODING = b"binary/encrypted"
KEY_ID = "encryption-key-id"
_KEY_BYTES = 32
_NONCE_BYTES = 12


class PayloadLocked(Exception):
    """A payload cannot be decrypted here; the message names the key."""


@dataclass(frozen=True)
class Key:
    id: str
    cipher: AESGCM
    check: str  # tells two keys apart and nothing of either

    @classmethod
    def of(cls, key_id: str, secret: bytes) -> "Key":
        check = hmac.digest(secret, b"batchwright key check", hashlib.sha256).hex()[:8]
        return cls(key_id, AESGCM(secret), check)


class EncryptionCodec(PayloadCodec):
    """`keys`: the first encrypts, all decrypt."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._first = keys[0]
        self._keys: Mapping[str, Key] = {key.id: key for key in keys}

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._sealed(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Raises PayloadLocked."""
        return opened(payloads, self._keys)

    def _sealed(self, payload: Payload) -> Payload:
        nonce = os.urandom(_NONCE_BYTES)
        data = nonce + self._first.cipher.encrypt(nonce, payload.SerializeToString(), None)
        return Payload(metadata={"encoding": ENCODING, KEY_ID: self._first.id.encode()}, data=data)


class LockedCodec(PayloadCodec):
    """Of a process without keys: it encrypts nothing, and says which key a payload wants."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Raises PayloadLocked."""
        return opened(payloads, {})


def opened(payloads: Iterable[Payload], keys: Mapping[str, Key]) -> list[Payload]:
    """Raises PayloadLocked."""
    return [_opened(payload, keys) for payload in payloads]


def keys_of(settings: Settings) -> list[Key]:
    """The keys that the settings refer to, in their order.

    Raises:
        SettingsError: one cannot be read or is no key; the sentence names it and not what it is.
    """
    return [Key.of(reference.id, _secret(reference)) for reference in key_references(settings.payload_keys)]


def codec_of(settings: Settings) -> PayloadCodec:
    """Raises SettingsError, as `keys_of`."""
    keys = keys_of(settings)
    return EncryptionCodec(keys) if keys else LockedCodec()


def _opened(payload: Payload, keys: Mapping[str, Key]) -> Payload:
    if payload.metadata.get("encoding") != ENCODING:
        return payload
    key_id = payload.metadata.get(KEY_ID, b"").decode(errors="replace")
    key = keys.get(key_id)
    if key is None:
        raise PayloadLocked(
            f"The payload is encrypted with the key {key_id!r}, which BATCHWRIGHT_PAYLOAD_KEYS lacks."
        )
    try:
        plain = key.cipher.decrypt(payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:], None)
        return Payload.FromString(plain)
    except (InvalidTag, DecodeError, ValueError) as error:
        raise PayloadLocked(
            f"The payload does not open with the key {key_id!r} of BATCHWRIGHT_PAYLOAD_KEYS: it is damaged, "
            "or another key has its id."
        ) from error


def _secret(reference: KeyReference) -> bytes:
    text = _text(reference)
    for decode in (base64.b64decode, bytes.fromhex):
        try:
            secret = decode(text)
        except (ValueError, binascii.Error):
            continue
        if len(secret) == _KEY_BYTES:
            return secret
    raise _wrong(reference, "it is not 32 bytes in base64 or hex; `openssl rand -base64 32` makes a key")


def _text(reference: KeyReference) -> str:
    if reference.kind == "env":
        text = from_environment(reference.place)
        if not text:
            raise _wrong(reference, f"the variable {reference.place} is not set")
        return text.strip()
    try:
        return Path(reference.place).read_text("ascii").strip()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise _wrong(reference, f"{reference.place} cannot be read: {reason}") from error
    except UnicodeDecodeError:
        raise _wrong(reference, f"{reference.place} is not text") from None


def _wrong(reference: KeyReference, reason: str) -> SettingsError:
    return SettingsError(f"BATCHWRIGHT_PAYLOAD_KEYS is wrong: the key {reference.id!r}: {reason}.")
