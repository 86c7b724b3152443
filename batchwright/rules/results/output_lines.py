"""Write and read the lines of output and error files.

A response body that is JSON loses only its line breaks and the spaces around it.
"""

from json.encoder import encode_basestring_ascii as _quoted

import msgspec

from batchwright.contracts.errors import LineCode
from batchwright.contracts.terms import Usage
from batchwright.rules.json_text import is_json, replace_lone_surrogates
from batchwright.rules.results.token_usage import usage_of

MAX_TEXT_BYTES = 64 * 1024
_BREAKS = b"\r\n"
_RESULT_TEMPLATE = (
    b'{"id":"%b","custom_id":%b,"response":{"status_code":%d,"request_id":%b,"body":%b},"error":null}'
)


def result_line(
    request_id: str,
    custom_id: str,
    *,
    status_code: int,
    backend_request_id: str,
    body: bytes,
    known_json: bool = False,
) -> bytes:
    """Return the line of an output or error file, without a newline, for a request that has a response.

    Args:
        request_id: `batch_req_...` id of the line.
        custom_id: the client's id of the line.
        status_code: HTTP status of the response.
        backend_request_id: id that the backend gave to the request.
        body: body of the response. If it is not JSON, it is written as a JSON string and cut at 64 KiB.
        known_json: True if the caller knows that `body` is JSON, which saves the check.
    """
    if known_json and b"\n" not in body and b"\r" not in body:
        value = body.strip()
    else:
        value = json_value(body, known_json)
    own_id, quoted_custom_id = request_id.encode(), _quoted(custom_id).encode()
    return _RESULT_TEMPLATE % (
        own_id,
        quoted_custom_id,
        status_code,
        _quoted(backend_request_id).encode(),
        value,
    )


def error_line(request_id: str, custom_id: str, code: LineCode, message: str) -> bytes:
    """Return the line of an error file, without a newline, for a request that has no response."""
    return b"".join((
        b'{"id":', _json_string(request_id), b',"custom_id":', _json_string(custom_id),
        b',"response":null,"error":{"code":', _json_string(code),
        b',"message":', _json_string(message), b"}}",
    ))  # fmt: skip


def json_value(body: bytes, known_json: bool = False) -> bytes:
    """Return `body` as JSON without line breaks.

    If `body` is not JSON, return it as a JSON string, cut at 64 KiB.

    Args:
        body: body of a response.
        known_json: True if the caller knows that `body` is JSON, which saves the check.
    """
    if known_json or is_json(body):
        return body.translate(None, _BREAKS).strip() if b"\n" in body or b"\r" in body else body.strip()
    return _json_string(body[:MAX_TEXT_BYTES].decode(errors="replace"))


def _json_string(value: str) -> bytes:
    return _quoted(value).encode()


# Codes of lines that were never sent or never answered. A rerun of the batch sends such lines.
NEVER_SETTLED = frozenset(
    {LineCode.BATCH_EXPIRED, LineCode.BATCH_CANCELLED, LineCode.BATCH_FAILED, LineCode.BUDGET_EXCEEDED}
)
_LINE_START = b'{"id":"'
_ID_BYTES = len("batch_req_") + 32
_ID_END = len(_LINE_START) + _ID_BYTES
HEAD_BYTES = _ID_END + 1  # length of a line's beginning, up to the end of its id
_CUSTOM_ID = b',"custom_id":"'  # what follows the id of a line
_DIGITS = slice(len(_LINE_START) + len("batch_req_"), _ID_END)


class ResultDamaged(ValueError):
    """Raised if a line of an output or error file is invalid. A retry does not help."""


class _ResponseBody(msgspec.Struct):
    body: msgspec.Raw = msgspec.Raw(b"null")


class _ErrorCode(msgspec.Struct):
    code: str = ""


class _ResultLine(msgspec.Struct):
    response: _ResponseBody | None = None
    error: _ErrorCode | None = None


_DECODER = msgspec.json.Decoder(_ResultLine)


def line_id(line: bytes) -> str:
    """Return the `batch_req_...` id of a line of an output or error file.

    The first HEAD_BYTES of the line are enough.

    Raises:
        ResultDamaged: the line does not begin with an id.
    """
    if not line.startswith(_LINE_START + b"batch_req_") or line[_ID_END:HEAD_BYTES] != b'"':
        raise ResultDamaged(f"a line of results begins with {line[:HEAD_BYTES]!r}")
    return line[len(_LINE_START) : _ID_END].decode("ascii", "replace")


def id_digest(line: bytes) -> bytes:
    """Return the binary form (16 bytes) of the `batch_req_...` id in a line of an output or error file.

    Raises:
        ResultDamaged: the line has no valid id.
    """
    line_id(line)
    return _digest(line[_DIGITS].decode("ascii", "replace"))


def request_digest(request_id: str) -> bytes:
    """Return the binary form (16 bytes) of the id `request_id`, which begins with `batch_req_`.

    For a line with this id, `id_digest` returns the same bytes.

    Raises:
        ResultDamaged: the id is invalid.
    """
    return _digest(request_id.removeprefix("batch_req_"))


def with_id(line: bytes, request_id: str) -> bytes:
    """Return a line of an output or error file with its `batch_req_...` id replaced by `request_id`."""
    return _LINE_START + request_id.encode() + line[_ID_END:]


def copy_result(line: bytes, request_id: str, custom_id: str) -> bytes:
    """Return the result line of a duplicate: a copy of the earlier line's result with the duplicate's ids.

    Args:
        line: line of the output or error file for the earlier request.
        request_id: `batch_req_...` id of the duplicate.
        custom_id: `custom_id` of the duplicate.

    Raises:
        ResultDamaged: `line` is not a result line.
    """
    start = HEAD_BYTES + len(_CUSTOM_ID)
    if line[HEAD_BYTES:start] != _CUSTOM_ID:
        raise ResultDamaged(f"a line of results begins with {line[:start]!r}")
    end = _end_of_text(line, start)
    return with_id(line[:HEAD_BYTES], request_id) + _CUSTOM_ID[:-1] + _json_string(custom_id) + line[end:]


def _end_of_text(line: bytes, start: int) -> int:
    """Return the position after the closing quote of a JSON string in `line`.

    Args:
        start: position after the opening quote of the string.

    Raises:
        ResultDamaged: the string has no end.
    """
    at = start
    while (at := line.find(b'"', at)) >= 0:
        escapes = at
        while line[escapes - 1 : escapes] == b"\\":
            escapes -= 1
        if (at - escapes) % 2 == 0:
            return at + 1
        at += 1
    raise ResultDamaged(f"a line of results begins with {line[: start + 40]!r}")


def is_settled_result(line: bytes) -> bool:
    """Return True if the line contains the result of its request: a success, or an error of the request.

    Return False if the request has no result, because the whole batch ended first: the batch expired, failed,
    was cancelled, or reached the cap on its cost.

    Raises:
        ResultDamaged: the line is invalid.
    """
    found = _read(line)
    return found.response is not None or found.error is None or found.error.code not in NEVER_SETTLED


def usage_of_line(line: bytes) -> Usage:
    """Return the token usage that the response in the line reports; zeros if the response reports no usage.

    Raises:
        ResultDamaged: the line is invalid.
    """
    found = _read(line)
    return Usage() if found.response is None else usage_of(bytes(found.response.body))


def _read(line: bytes) -> _ResultLine:
    try:
        return _DECODER.decode(replace_lone_surrogates(line))
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ResultDamaged(f"a line of results is not JSON: {error}") from error


def _digest(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError as error:
        raise ResultDamaged(f"{digits!r} is not the id of a request") from error
