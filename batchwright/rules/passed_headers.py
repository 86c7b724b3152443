"""Headers of a batch's creation that go with each of its requests: which may, and with which values."""

import re
from collections.abc import Iterable

MOST_HEADERS = 8
MOST_CHARACTERS = 256  # of one value: the headers go with every slice of the batch through Temporal
_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
_VALUE = re.compile(r"[\x20-\x7e]*")

# Parts of names, between hyphens or underscores, by which credentials go.
_CREDENTIALS = frozenset(
    {
        *("auth", "authentication", "authorization", "bearer", "cookie", "cookie2", "credential"),
        *("credentials", "csrf", "jwt", "passphrase", "passwd", "password", "secret", "session"),
        *("signature", "token", "xsrf"),
    }
)
_KEYS = ("key", "keys")  # also as an end: apikey
_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("host", "expect", "via", "max-forwards", "http2-settings"),
    }
)
_OURS = frozenset(
    {
        *("accept", "accept-encoding", "content-encoding", "content-length", "content-type"),
        *("range", "x-request-id", "traceparent", "tracestate", "baggage"),
    }
)


def read_names(text: str) -> tuple[str, ...]:
    """Of a list with commas, in lower case. Raises ValueError."""
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    if len(names) > MOST_HEADERS:
        raise ValueError(f"it may name at most {MOST_HEADERS} headers, not {len(names)}")
    for name in names:
        if problem := _problem(name):
            raise ValueError(f"{name!r} cannot be passed on: {problem}")
    return names


def check_value(value: str) -> None:
    """Raises ValueError: what is wrong, without the value."""
    if len(value) > MOST_CHARACTERS:
        raise ValueError(f"it has {len(value)} characters, and {MOST_CHARACTERS} may be passed on")
    if _VALUE.fullmatch(value) is None:
        raise ValueError("it has characters that are not printable ASCII")


def kept(headers: dict[str, str], names: Iterable[str]) -> dict[str, str]:
    """Of those that a batch was created with, the ones that are passed on now."""
    allowed = set(names)
    return {name: value for name, value in headers.items() if name in allowed}


def _problem(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        return "it is no header's name of 1 to 64 characters"
    parts = re.split(r"[-_]", name)
    if not _CREDENTIALS.isdisjoint(parts) or any(part.endswith(_KEYS) for part in parts):
        return "it carries credentials or keys; what a backend needs of those is in the registry"
    if name in _HOP_BY_HOP or name.startswith("proxy-"):
        return "it belongs to one connection"
    return "Batchwright sets it itself" if name in _OURS else ""
