"""Turn calls (single requests that clients send without a file) into lines of a batch."""

from collections.abc import Container
from json.encoder import encode_basestring_ascii
from typing import Literal

import msgspec

from batchwright.contracts.terms import Endpoint
from batchwright.rules.json_text import MAX_NESTING

CALLS_PURPOSE: Literal["calls"] = (
    "calls"  # purpose of the files of rolling batches, which no list of files shows
)
_LINE = b'{"custom_id":"%b","method":"POST","url":"%b","body":%b}\n'
# Number of bytes of a line that are not the body: the id, the URL, and what is between them.
LONGEST_LINE_START = len(_LINE) + 42 + max(len(endpoint) for endpoint in Endpoint)
MAX_CALL_NESTING = MAX_NESTING - 1  # levels of a call's body; the object around it in the line is one more
_BREAKS = b"\r\n"


def call_line(call_id: str, endpoint: Endpoint, body: bytes) -> bytes:
    """Return the input line for a call, with a newline.

    A call is a single request that a client sends without a file. It runs as a line of a batch. The body must
    be nested at most MAX_CALL_NESTING levels deep, so that the line can be parsed later.
    """
    return _LINE % (call_id.encode(), endpoint.encode(), body.translate(None, _BREAKS))


def edit_body(fields: dict[str, msgspec.Raw], without: Container[str] = (), **values: str) -> bytes:
    """Return the JSON body of a request with some fields left out or replaced. The rest stays unchanged.

    Args:
        fields: the fields of the body, each with its JSON text.
        without: names of the fields that are left out.
        values: new values by field name. A field that is missing in `fields` is added.
    """
    kept = {name: value for name, value in fields.items() if name not in without}
    for name, value in values.items():
        kept[name] = msgspec.Raw(encode_basestring_ascii(value).encode())
    return msgspec.json.encode(kept)
