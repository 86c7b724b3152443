"""Redacts secrets in texts.

Configured secrets are found by their value. Other secrets are found by their form, such as `password=...`.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import cast
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from batchwright.rules.key_references import parse_key_references
from batchwright.settings import SECRETS, Settings, from_environment

REDACTED = "***"
_MAX_CACHED_CHARACTERS, _CACHED_TEXTS = 100, 1_000  # for short texts that recur in many entries
_MIN_SECRET_CHARACTERS = 4  # redacting shorter values would garble every line

_VALUE = r"""[^\s"',;&()<>{}\[\]\\]+"""
_QUOTED = r"""(b?\\*["'])[^"'\\]*"""
_NAMES = (
    r"[\w-]*(?:api[_-]?key|access[_-]?key|private[_-]?key|passw(?:or)?d|passphrase|secret"
    r"|(?:session|security|auth|access|refresh|bearer)[_-]?token)"
)
_SECRET_SHAPES = (
    # The value of a header, also in a dict or in a list of pairs.
    rf"""(\b(?:proxy-)?authorization\b\\*["']?\s*[:=,]\s*)(?:{_QUOTED}|(?:(?:basic|bearer)\s+)?{_VALUE})""",
    r"(\b(?:basic|bearer)\s+)()[\w.~+/-]{8,}=*",
    rf"""((?<![\w-]){_NAMES}\\*["']?\s*[:=]\s*)(?:{_QUOTED}|{_VALUE})""",
    r"""(://[^\s:/?#@"']*:)()[^\s@/"']+(?=@)""",  # the password of a URL
    r"(\b(?:sk|pk|rk|bw|hf|gsk|xox[abp]|gh[opsu])[_-])()[\w-]{10,}",
    r"(\b(?:AKIA|ASIA))()[A-Z0-9]{16}\b",
    r"([0-9a-f]{32}\.\d+\.\d+\.)()[\w-]{43}",  # the token of a callback
    r"((?<![\w-])(?>[\w-]*?\beyJ))()[\w-]{8,}+\.[\w-]{4,}+\.[\w-]*+",  # a JSON web token
)
_REPLACEMENT = rf"\1\2{REDACTED}"
_PATTERNS = [re.compile(shape, re.IGNORECASE) for shape in _SECRET_SHAPES]
_SECRET_NAME = re.compile(rf"{_NAMES}|(?:proxy-)?authorization", re.IGNORECASE)


class Redactor:
    """A callable that returns a text with `***` in place of each secret.

    Secrets are the texts in `secrets` with at least four characters, and other text that looks like a secret.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= _MIN_SECRET_CHARACTERS}
        ordered = sorted(known, key=len, reverse=True)  # a secret may be a part of a longer one
        self._known = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._redact_cached = lru_cache(_CACHED_TEXTS)(self._redact)

    def __call__(self, text: str) -> str:
        return self._redact_cached(text) if len(text) <= _MAX_CACHED_CHARACTERS else self._redact(text)

    def value(self, value: object, name: str = "") -> object:
        """Return the value of a log field, with `***` in place of each secret.

        If the field's `name` suggests a secret, the whole text is replaced. In a dict, each key is the name
        of its value. Numbers, booleans and None are never replaced.
        """
        match value:
            case None | bool() | int() | float():
                return value
            case dict():
                items = cast("dict[object, object]", value).items()
                return {self(str(key)): self.value(item, str(key)) for key, item in items}
            case list() | tuple() | set() | frozenset():
                return [self.value(item, name) for item in cast("Iterable[object]", value)]
            case _:
                return REDACTED if _SECRET_NAME.fullmatch(name) else self(str(value))

    def _redact(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        for pattern in _PATTERNS:
            text = pattern.sub(_REPLACEMENT, text)
        return text


def redactor_for(settings: Settings) -> Redactor:
    """Return a function that removes all secrets of the settings from texts."""
    return Redactor(_secrets_in(settings))


def _secrets_in(settings: Settings) -> Iterator[str]:
    for name in type(settings).model_fields:
        for text in _texts(getattr(settings, name)):
            yield from _url_passwords(text)
            if name in SECRETS:
                yield from _secret_parts(name, text)


def _secret_parts(name: str, text: str) -> Iterator[str]:
    """Yield the secret parts of `text`, which is the value of the secret setting `name`.

    - If the setting contains headers, yield the value of each header, also with percent escapes decoded.
    - If the setting is `payload_keys`, yield the values of the environment variables that it names.
    - If the text is a URL, yield nothing, because `_url_passwords` yields its password.
    - In all other cases, yield the whole text.
    """
    if name.endswith("_headers"):
        for pair in text.split(","):
            yield (value := pair.partition("=")[2].strip())
            yield unquote(value)
    elif name == "payload_keys":
        yield from [from_environment(key.place) for key in parse_key_references([text]) if key.kind == "env"]
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


def _url_passwords(text: str) -> Iterator[str]:
    """Yield the password of a URL, both as written and with its percent escapes decoded.

    A password that is the same as the user name is not yielded, because redaction would then hide the user
    name everywhere.
    """
    if "://" not in text:
        return
    parts = urlsplit(text)
    if parts.password and parts.password != parts.username:
        yield parts.password
        yield unquote(parts.password)
