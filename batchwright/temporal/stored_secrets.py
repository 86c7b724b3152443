"""Encrypt secrets that the database stores, with the keys that also encrypt the payloads of Temporal."""

import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag

from batchwright.temporal.codec import PayloadKey

_PLAIN = b"\x00"  # first byte of a secret that is not encrypted
_ENCRYPTED = b"\x01"
_NONCE_BYTES = 12


class StoredSecretUnreadable(Exception):
    """Raised if a stored secret cannot be decrypted in this process.

    The message names the key with which the secret was encrypted, and does not contain the secret.
    """


class StoredSecrets:
    """An object that encrypts secrets with the first of `keys`, and decrypts them with any of the keys.

    Without keys, secrets are stored unencrypted. A secret is encrypted for an owner (a database row), and can
    be decrypted only for the same owner.
    """

    def __init__(self, keys: Sequence[PayloadKey]) -> None:
        self._first = keys[0] if keys else None
        self._keys = {key.id: key for key in keys}

    def encrypt(self, secret: str, owner: str) -> bytes:
        """Return the bytes to store for a secret. `owner` is the id of the database row that stores them."""
        if self._first is None:
            return _PLAIN + secret.encode()
        nonce = os.urandom(_NONCE_BYTES)
        encrypted = self._first.cipher.encrypt(nonce, secret.encode(), owner.encode())
        return _ENCRYPTED + self._first.id.encode() + b"\x00" + nonce + encrypted

    def decrypt(self, stored: bytes, owner: str) -> str:
        """Return the secret from the bytes that `encrypt` returned for it.

        Raises:
            StoredSecretUnreadable: the key is missing, the secret was encrypted for another owner, or the
                bytes are damaged.
        """
        if stored[:1] == _PLAIN:
            return stored[1:].decode()
        name, _, rest = stored[1:].partition(b"\x00")
        key_id = name.decode(errors="replace")
        key = self._keys.get(key_id)
        if key is None:
            raise StoredSecretUnreadable(
                f"The secret is encrypted with the key {key_id!r}, which BATCHWRIGHT_PAYLOAD_KEYS lacks."
            )
        try:
            return key.cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], owner.encode()).decode()
        except (InvalidTag, ValueError):
            raise StoredSecretUnreadable(
                f"The secret cannot be decrypted with the key {key_id!r} of BATCHWRIGHT_PAYLOAD_KEYS."
            ) from None
