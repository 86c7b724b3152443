"""Write lines of an input file."""

import json
from collections.abc import Mapping


def request_line(custom_id: str, endpoint: str, body: Mapping[str, object]) -> bytes:
    """Return the line of an input file for one request. It ends with a newline.

    Raises:
        ValueError: the body has NaN or an infinite number, which JSON cannot represent.
        TypeError: the body has a value of another type that JSON cannot represent.
    """
    line = {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body}
    return json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n"
