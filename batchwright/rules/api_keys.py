"""API keys: what they look like, what is kept of them, what they may do.

A key is `bw_<prefix>_<secret>`. The prefix may be seen and finds the key's row; of the secret only a salted
hash is kept. A fast one: 40 random characters are beyond guessing at any speed, unlike what people choose.
"""

import hmac
import re
import string
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from secrets import choice, token_bytes
from typing import NamedTuple

import uuid_utils

_PREFIX_LETTERS = string.ascii_lowercase + string.digits
_SECRET_LETTERS = string.ascii_letters + string.digits
_PREFIX_CHARACTERS, _SECRET_CHARACTERS = 12, 40
_KEY = re.compile(rf"bw_([a-z0-9]{{{_PREFIX_CHARACTERS}}})_([A-Za-z0-9]{{{_SECRET_CHARACTERS}}})")
_SALT_BYTES = 16
_LIFE = re.compile(r"([1-9][0-9]{0,5})([hd])")
_UNITS = {"h": "hours", "d": "days"}


class Scope(StrEnum):
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class ApiKey(NamedTuple):
    """A whole key, as its owner has it."""

    prefix: str
    secret: str

    @property
    def text(self) -> str:
        return f"bw_{self.prefix}_{self.secret}"

    def __repr__(self) -> str:
        """Without the secret, wherever it is logged."""
        return f"ApiKey(bw_{self.prefix}_...)"

    __str__ = __repr__


class Kept(NamedTuple):
    """What the database has of a secret."""

    salt: bytes
    hash: bytes


# No secret has it: what looks for a key that nobody has does all that it does for others.
_NOBODYS = Kept(bytes(_SALT_BYTES), bytes(sha256().digest_size))


def new_key() -> ApiKey:
    return ApiKey(
        "".join(choice(_PREFIX_LETTERS) for _ in range(_PREFIX_CHARACTERS)),
        "".join(choice(_SECRET_LETTERS) for _ in range(_SECRET_CHARACTERS)),
    )


def new_key_id() -> str:
    return "key_" + uuid_utils.uuid7().hex


def parse(text: str) -> ApiKey | None:
    """None where it has not the form of a key."""
    found = _KEY.fullmatch(text)
    return None if found is None else ApiKey(found[1], found[2])


def keep(key: ApiKey) -> Kept:
    """What is kept of a new key."""
    salt = token_bytes(_SALT_BYTES)
    return Kept(salt, _hash(salt, key.secret))


def opens(key: ApiKey, kept: Kept | None) -> bool:
    """Whether the secret is the kept one's; as long as ever where nothing is kept, and no."""
    salt, expected = kept or _NOBODYS
    return hmac.compare_digest(_hash(salt, key.secret), expected)


def needed(method: str, path: str) -> Scope:
    """The scope of a request: `admin` below /admin, for /v1/stats and all metrics, else by its method."""
    if path in ("/admin", "/v1/stats", "/metrics") or path.startswith("/admin/"):
        return Scope.ADMIN
    return Scope.READ if method in ("GET", "HEAD") else Scope.WRITE


def life(text: str) -> timedelta:
    """Of `12h` or `90d`. Raises ValueError."""
    found = _LIFE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no time such as 12h or 90d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def is_usable(
    at: datetime, *, expires_at: datetime | None, revoked_at: datetime | None, disabled_at: datetime | None
) -> bool:
    """Of a key; `disabled_at` is its tenant's."""
    return revoked_at is None and disabled_at is None and (expires_at is None or expires_at > at)


def _hash(salt: bytes, secret: str) -> bytes:
    return sha256(salt + secret.encode()).digest()
