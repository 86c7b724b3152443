"""Which keys a storage takes: relative, plain, and the same on every kind of storage."""

import re

_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}"
_KEY = re.compile(rf"{_PART}(/{_PART})*")
_PREFIX = re.compile(rf"({_PART}/)*({_PART})?")
_LONGEST = 1024  # S3's limit


def is_key(text: str) -> bool:
    return len(text) <= _LONGEST and _KEY.fullmatch(text) is not None


def check_key(key: str) -> str:
    """The key itself.

    Raises:
        ValueError: it is empty, absolute or too long, or has a part that is empty, hidden or not plain.
    """
    if not is_key(key):
        raise ValueError(f"{key!r} is not a storage key: keys are parts of [A-Za-z0-9._-] joined by '/'.")
    return key


def check_prefix(prefix: str) -> str:
    """The same for the beginning of a key; everything begins with the empty one."""
    if len(prefix) > _LONGEST or _PREFIX.fullmatch(prefix) is None:
        raise ValueError(f"{prefix!r} is not the beginning of a storage key.")
    return prefix
