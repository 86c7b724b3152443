"""Make text safe to show in a terminal and in a log.

Names, metadata and error messages come from clients and backends. In a terminal, control characters in them
could move the cursor, hide lines or change the title of the window.
"""

import re

# All control characters except tabs and line feeds, and characters that reverse the direction of text.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def terminal_json(text: str) -> str:
    """Escape control characters in a JSON text, such as `\\u009b`. The JSON values stay the same.

    Tabs, line feeds and carriage returns stay: valid JSON has these characters only outside of strings.
    """
    return _UNSAFE.sub(lambda found: "\r" if found[0] == "\r" else f"\\u{ord(found[0]):04x}", text)


def terminal_text(text: str, replacement: str = "?") -> str:
    """Replace each control character in `text` with `replacement`. Tabs and line feeds stay."""
    return _UNSAFE.sub(replacement, text)
