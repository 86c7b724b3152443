"""Create, parse and check API keys: their format, and the hash that is stored.

An API key is `bw_<prefix>_<secret>`. The prefix is not secret and identifies the database row of the API key.
The secret is stored only as a salted hash. A fast hash is enough, because 40 random characters cannot be
guessed.
"""

import hmac
import re
import string
from datetime import datetime, timedelta
from hashlib import sha256
from secrets import choice, token_bytes
from typing import NamedTuple

import uuid_utils

_PREFIX_ALPHABET = string.ascii_lowercase + string.digits
_SECRET_ALPHABET = string.ascii_letters + string.digits
_PREFIX_CHARACTERS, _SECRET_CHARACTERS = 12, 40
_KEY = re.compile(rf"bw_([a-z0-9]{{{_PREFIX_CHARACTERS}}})_([A-Za-z0-9]{{{_SECRET_CHARACTERS}}})")
_SALT_BYTES = 16
_LIFE = re.compile(r"([1-9][0-9]{0,5})([hd])")
_UNITS = {"h": "hours", "d": "days"}


class ApiKey(NamedTuple):
    """A complete API key with its id and its secret, as the client holds it.

    The database stores only a hash of the secret (`SecretHash`).
    """

    prefix: str
    secret: str

    @property
    def text(self) -> str:
        return f"bw_{self.prefix}_{self.secret}"

    def __repr__(self) -> str:
        """Return the key without its secret, so that the result can be logged."""
        return f"ApiKey(bw_{self.prefix}_...)"

    __str__ = __repr__


class SecretHash(NamedTuple):
    """The salted hash of the secret of an API key, as the database stores it."""

    salt: bytes
    hash: bytes


# No secret has this hash. Comparing with it makes an unknown key take as long as a wrong secret.
_DUMMY_HASH = SecretHash(bytes(_SALT_BYTES), bytes(sha256().digest_size))


def new_key() -> ApiKey:
    return ApiKey(
        "".join(choice(_PREFIX_ALPHABET) for _ in range(_PREFIX_CHARACTERS)),
        "".join(choice(_SECRET_ALPHABET) for _ in range(_SECRET_CHARACTERS)),
    )


def new_key_id() -> str:
    return "key_" + uuid_utils.uuid7().hex


def parse_key(text: str) -> ApiKey | None:
    """Parse an API key. Return None if the text does not have the format of a key."""
    found = _KEY.fullmatch(text)
    return None if found is None else ApiKey(found[1], found[2])


def hash_secret(key: ApiKey) -> SecretHash:
    """Return the hash of a key's secret, with a new random salt."""
    salt = token_bytes(_SALT_BYTES)
    return SecretHash(salt, _hash(salt, key.secret))


def secret_matches(key: ApiKey, stored_hash: SecretHash | None) -> bool:
    """Return True if the secret of an API key has the hash `stored_hash`.

    Args:
        key: the API key as the client has sent it.
        stored_hash: hash in the database; None if the database has no such key. For None, return False, but
            take as long as for a wrong secret. So the response time does not reveal which keys exist.
    """
    salt, expected = stored_hash or _DUMMY_HASH
    return hmac.compare_digest(_hash(salt, key.secret), expected)


def parse_lifetime(text: str) -> timedelta:
    """Parse a duration such as `12h` or `90d`, for which an API key is valid.

    Raises:
        ValueError: the text does not have this form.
    """
    found = _LIFE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration such as 12h or 90d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def is_usable(
    at: datetime, *, expires_at: datetime | None, revoked_at: datetime | None, disabled_at: datetime | None
) -> bool:
    """Return True if an API key is valid at the time `at`.

    Args:
        at: the point in time to check.
        expires_at: None if the key never expires.
        revoked_at: None if the key was not revoked.
        disabled_at: when the key's tenant was disabled; None if it was not disabled.
    """
    return revoked_at is None and disabled_at is None and (expires_at is None or expires_at > at)


def _hash(salt: bytes, secret: str) -> bytes:
    return sha256(salt + secret.encode()).digest()
