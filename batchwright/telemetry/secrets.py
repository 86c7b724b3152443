"""Strikes secrets out of texts: those of the settings by their value, others by what they look like."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import cast
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from batchwright.rules.keyring import key_references
from batchwright.settings import SECRETS, Settings, from_environment

STRUCK = "***"
_SHORT, _REMEMBERED = 100, 1_000  # names, ids and constant messages come again with every entry
_LEAST_CHARACTERS = 4  # what is shorter is no secret, and striking it would garble every line

_VALUE = r"""[^\s"',;&()<>{}\[\]\\]+"""
_QUOTED = r"""(b?\\*["'])[^"'\\]*"""
_NAMES = (
    r"[\w-]*(?:api[_-]?key|access[_-]?key|private[_-]?key|passw(?:or)?d|passphrase|secret"
    r"|(?:session|security|auth|access|refresh|bearer)[_-]?token)"
)
_LOOKS = (
    # A header's value, also of a dict or of a list of pairs.
    rf"""(\b(?:proxy-)?authorization\b\\*["']?\s*[:=,]\s*)(?:{_QUOTED}|(?:(?:basic|bearer)\s+)?{_VALUE})""",
    r"(\b(?:basic|bearer)\s+)()[\w.~+/-]{8,}=*",
    rf"""(\b{_NAMES}\\*["']?\s*[:=]\s*)(?:{_QUOTED}|{_VALUE})""",
    r"""(://[^\s:/?#@"']*:)()[^\s@/"']+(?=@)""",  # the password of a URL
    r"(\b(?:sk|pk|rk|bw|hf|gsk|xox[abp]|gh[opsu])[_-])()[\w-]{10,}",
    r"(\b(?:AKIA|ASIA))()[A-Z0-9]{16}\b",
    r"(\beyJ)()[\w-]{8,}\.[\w-]{4,}\.[\w-]*",  # a JSON web token
)
_KEPT = rf"\1\2{STRUCK}"
_PATTERNS = [re.compile(look, re.IGNORECASE) for look in _LOOKS]
_NAMED = re.compile(rf"{_NAMES}|(?:proxy-)?authorization", re.IGNORECASE)


class Redactor:
    """Strikes the given secrets and what looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= _LEAST_CHARACTERS}
        ordered = sorted(known, key=len, reverse=True)  # of two, one may be a part of the other
        self._known = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._again = lru_cache(_REMEMBERED)(self._struck)

    def __call__(self, text: str) -> str:
        return self._again(text) if len(text) <= _SHORT else self._struck(text)

    def _struck(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(STRUCK, text)
        for pattern in _PATTERNS:
            text = pattern.sub(_KEPT, text)
        return text

    def value(self, value: object, name: str = "") -> object:
        """A value of an entry's data; where its `name` is that of a secret, all of it is struck."""
        match value:
            case None | bool() | int() | float():
                return value
            case dict():
                items = cast("dict[object, object]", value).items()
                return {self(str(key)): self.value(item, str(key)) for key, item in items}
            case list() | tuple() | set() | frozenset():
                return [self.value(item, name) for item in cast("Iterable[object]", value)]
            case _:
                return STRUCK if _NAMED.fullmatch(name) else self(str(value))


def redactor_of(settings: Settings) -> Redactor:
    return Redactor(_secrets_of(settings))


def _secrets_of(settings: Settings) -> Iterator[str]:
    for name in type(settings).model_fields:
        for text in _texts(getattr(settings, name)):
            yield from _passwords(text)
            if name in SECRETS:
                yield from _secret_parts(name, text)


def _secret_parts(name: str, text: str) -> Iterator[str]:
    """Of headers the values, of a key's name the key; of a URL only the password is one, which is known."""
    if name.endswith("_headers"):
        for pair in text.split(","):
            yield (value := pair.partition("=")[2].strip())
            yield unquote(value)
    elif name == "payload_keys":
        yield from [from_environment(key.place) for key in key_references([text]) if key.kind == "env"]
    elif "://" not in text:
        yield text


def _texts(value: object) -> list[str]:
    match value:
        case str():
            return [value]
        case SecretStr():
            return [value.get_secret_value()]
        case list():
            return [text for item in cast("list[object]", value) for text in _texts(item)]
        case _:
            return []


def _passwords(text: str) -> Iterator[str]:
    """Of a URL; one that repeats the user's name is none worth hiding wherever that name appears."""
    if "://" not in text:
        return
    parts = urlsplit(text)
    if parts.password and parts.password != parts.username:
        yield parts.password
        yield unquote(parts.password)
