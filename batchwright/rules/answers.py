"""Lines of output and error files: bodies spliced in byte for byte (R24, S0-43)."""

import re
from json.encoder import encode_basestring_ascii as _quoted

import msgspec

from batchwright.contracts.errors import LineCode

MAX_TEXT_BYTES = 64 * 1024
_BREAKS = re.compile(rb"[\r\n]+")
_RESULT = b'{"id":"%b","custom_id":%b,"response":{"status_code":%d,"request_id":%b,"body":%b},"error":null}'


def result_line(
    request_id: str,
    custom_id: str,
    *,
    status_code: int,
    backend_request_id: str,
    body: bytes,
    known_json: bool = False,
) -> bytes:
    """A line with the backend's answer, without a newline; `known_json`: `is_json` was true of `body`.

    Line breaks of `body` are dropped: in JSON they can only stand outside strings.
    A body that is not JSON becomes a JSON string, cut at 64 KiB.
    """
    if known_json and b"\n" not in body and b"\r" not in body:
        value = body.strip()
    else:
        value = json_value(body, known_json)
    own_id, asked_as = request_id.encode(), _quoted(custom_id).encode()
    return _RESULT % (own_id, asked_as, status_code, _quoted(backend_request_id).encode(), value)


def error_line(request_id: str, custom_id: str, code: LineCode, message: str) -> bytes:
    """A line that no backend answered, without a newline."""
    return b"".join((
        b'{"id":', _text(request_id), b',"custom_id":', _text(custom_id),
        b',"response":null,"error":{"code":', _text(code), b',"message":', _text(message), b"}}",
    ))  # fmt: skip


def json_value(body: bytes, known_json: bool = False) -> bytes:
    """`body` as one line of JSON."""
    if known_json or is_json(body):
        return _BREAKS.sub(b"", body).strip() if b"\n" in body or b"\r" in body else body.strip()
    return _text(body[:MAX_TEXT_BYTES].decode(errors="replace"))


def is_json(body: bytes) -> bool:
    """Whether `body` is one JSON value in UTF-8."""
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _text(value: str) -> bytes:
    return _quoted(value).encode()
