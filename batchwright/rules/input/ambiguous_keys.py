"""Find ambiguous keys, which different JSON readers interpret differently.

A key is ambiguous if it is repeated or not in lower case. Some backends use the first value of a repeated
key, others use the last value, and some read `Model` as `model`. Lines with such keys are rejected, because a
backend might use another value than the value that was checked.
"""

import json
import re
from collections.abc import Iterator
from operator import attrgetter

from msgspec import UNSET

from batchwright.rules.input.line_parser import FastLine, LineFields, RawValue, RequestBody
from batchwright.rules.json_text import member_name, object_members

LINE_NAMES = frozenset(LineFields.__struct_fields__)
BODY_NAMES = frozenset({*RequestBody.__struct_fields__, "tool_choice", "functions", "function_call"})
_EXACT = frozenset(key.encode() for key in LINE_NAMES | BODY_NAMES)
_CHECKED_KEY = re.compile(rb'"(' + b"|".join(sorted(_EXACT, reverse=True)) + rb')"\s*+:', re.IGNORECASE)
_BODY = b'"body"'
_SPACE_AFTER_COLON = b": "
_SELF_DELIMITING = b'["{'
_MAX_TEMPLATES = 1_000
_MAX_TEMPLATE_BYTES = 4 * 1024 * 1024  # limit for all templates together; a larger template is kept alone


def ambiguous_keys(text: bytes, checked: frozenset[str]) -> Iterator[str]:
    """Yield the ambiguous top-level keys of a JSON object: keys that are repeated, or not in lower case.

    Args:
        text: the JSON object.
        checked: keys in lower case. All other keys are ignored.
    """
    seen: set[str] = set()
    for member in object_members(text):
        key = member_name(member)
        lower = key if key in checked else key.casefold()
        if lower in checked:
            if lower in seen or lower != key:
                yield key
            seen.add(lower)


def is_unambiguous(line: bytes) -> bool:
    """Return True if no key of the line or its body is ambiguous (repeated, or not in lower case).

    Only the keys in LINE_NAMES (for the line) and in BODY_NAMES (for the body) are checked.
    """
    if b"\\" not in line and line.isascii():
        found = _CHECKED_KEY.findall(line)
        if len(set(found)) == len(found) and _EXACT.issuperset(found):
            return True
    for member in object_members(line):
        body = line[member.start : member.end]
        if member_name(member) == "body" and any(ambiguous_keys(body, BODY_NAMES)):
            return False
    return not any(ambiguous_keys(line, LINE_NAMES))


class LineTemplates:
    """A fast check for ambiguous keys, for lines that differ only in their `custom_id` and their prompt.

    A key is ambiguous if it is repeated or not in lower case. If a line fits no template, it gets the full
    check. If it passes, a template is stored: the text of the line from `"body"` on, without the prompt. A
    later line with the same text from `"body"` on needs no full check. The text before `"body"` contains the
    `custom_id`, so this text differs. If the number of quotes in this text is as expected, it contains no
    additional key.
    """

    def __init__(self, field: str) -> None:
        """Create a check without templates, for the lines of one endpoint.

        `field` is the field of a request's body that holds the prompt, such as `messages`.
        """
        self._key = json.dumps(field).encode()
        self._prompt_of = attrgetter(field)
        self._known: dict[tuple[object, int], tuple[bytes, bytes]] = {}
        self._bytes = 0

    def is_unambiguous(self, line: bytes, fast: FastLine) -> bool:
        """Return True if no key of the line or its body is ambiguous (repeated, or not in lower case).

        Args:
            line: bytes of the line.
            fast: the same line after parsing.
        """
        body, start = fast.body, line.find(_BODY)
        prompt: RawValue = self._prompt_of(body)
        if prompt is UNSET:
            return is_unambiguous(line)
        around = body.model, len(line) - start - len(memoryview(prompt))
        parts = self._known.get(around)
        if (
            parts is not None
            and line.startswith(parts[0], start)
            and line.endswith(parts[1])
            and line.count(b'"', 0, start) == _quotes_before_body(fast)
        ):
            return True
        return self._is_unambiguous_first_time(line, start, around, memoryview(prompt), fast)

    def _is_unambiguous_first_time(
        self, line: bytes, start: int, around: tuple[object, int], prompt: memoryview, fast: FastLine
    ) -> bool:
        at = line.find(self._key, start) + len(self._key) + 1
        if line.startswith(_SPACE_AFTER_COLON, at - 1):
            at += 1
        end = at + len(prompt)
        if prompt[0] not in _SELF_DELIMITING or not line.startswith(prompt, at):
            return is_unambiguous(line)
        if not is_unambiguous(line[:at] + b"0" + line[end:]):
            return False
        size = len(line) - start - len(prompt)
        if line.count(b'"', 0, start) == _quotes_before_body(fast):
            if len(self._known) >= _MAX_TEMPLATES or self._bytes + size > _MAX_TEMPLATE_BYTES:
                self._known.clear()
                self._bytes = 0
            self._known[around] = line[start:at], line[end:]
            self._bytes += size
        return True


def _quotes_before_body(fast: FastLine) -> int:
    """Return how many quotes a line has before its `"body"` if there is no unknown key before `"body"`.

    The key `custom_id` and its value have four quotes. If the line has a `method` or a `url`, each of these
    has four quotes, too.
    """
    return 4 + 4 * (fast.method is not UNSET) + 4 * (fast.url is not UNSET)
