"""Indent JSON for people, and cut it if it is long."""

import json
import re
from collections.abc import Iterator

_MAX_CHARACTERS, _MAX_BYTES = 20_000, 64 * 1024
_CUT = "\n... Download the file to read the rest."
# A string may end with the text, because the text may be cut.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{},:]|[^\s"\[\]{},:]++', re.DOTALL)


def indented_json(value: bytes | memoryview) -> str:
    """Return JSON with indentation. Escaped printable characters are decoded, and long JSON is cut.

    At most 64 KiB are read, and at most about 20,000 characters are returned. Without these limits, a few
    megabytes of deeply nested lists would become gigabytes.
    """
    pieces, size = list[str](), 0
    for piece in _indented(bytes(value[:_MAX_BYTES]).decode(errors="replace")):
        pieces.append(piece)
        size += len(piece)
        if size > _MAX_CHARACTERS:
            break
    is_cut = size > _MAX_CHARACTERS or len(value) > _MAX_BYTES
    return "".join(pieces)[:_MAX_CHARACTERS] + (_CUT if is_cut else "")


def _indented(text: str) -> Iterator[str]:
    depth, is_opened = 0, False
    for found in _TOKEN.finditer(text):
        token = found[0]
        closes = token in ("]", "}")
        depth -= closes
        if closes != is_opened:  # an empty list or object stays on its line
            yield "\n" + "  " * depth
        is_opened = token in ("[", "{")
        depth += is_opened
        match token:
            case ",":
                yield ",\n" + "  " * depth
            case ":":
                yield ": "
            case _:
                yield _without_escapes(token) if token[0] == '"' else token


def _without_escapes(string: str) -> str:
    try:
        return json.dumps(json.loads(string), ensure_ascii=False)
    except ValueError:  # it is cut
        return string
