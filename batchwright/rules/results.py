"""Lines of output and error files, read again: whose they are, and whether they are a result."""

import msgspec

from batchwright.contracts.errors import LineCode
from batchwright.contracts.openai import Usage
from batchwright.rules.usage import usage_of

# Of lines that were never answered: what goes on with their batch asks them.
NEVER_SETTLED = frozenset({LineCode.BATCH_EXPIRED, LineCode.BATCH_CANCELLED, LineCode.BATCH_FAILED})

_BEFORE = b'{"id":"'
_ID_BYTES = len("batch_req_") + 32
_END = len(_BEFORE) + _ID_BYTES
HEAD_BYTES = _END + 1  # of a line, as many as its id takes
_DIGITS = slice(len(_BEFORE) + len("batch_req_"), _END)


class ResultDamaged(ValueError):
    """The bytes are no line of an output or error file."""


class _Response(msgspec.Struct):
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Error(msgspec.Struct):
    code: str = ""


class _Result(msgspec.Struct):
    response: _Response | None = None
    error: _Error | None = None


_DECODER = msgspec.json.Decoder(_Result)


def line_id(line: bytes) -> str:
    """`batch_req_...` of a line, or of its first HEAD_BYTES. Raises ResultDamaged."""
    if not line.startswith(_BEFORE + b"batch_req_") or line[_END:HEAD_BYTES] != b'"':
        raise ResultDamaged(f"a line of results begins with {line[:HEAD_BYTES]!r}")
    return line[len(_BEFORE) : _END].decode("ascii", "replace")


def id_digest(line: bytes) -> bytes:
    """The same in 16 bytes. Raises ResultDamaged."""
    line_id(line)
    return _digest(line[_DIGITS].decode("ascii", "replace"))


def digest_of(request_id: str) -> bytes:
    """What `id_digest` gives for a line with that id."""
    return _digest(request_id.removeprefix("batch_req_"))


def with_id(line: bytes, request_id: str) -> bytes:
    """The line under another id; the rest stays byte for byte."""
    return _BEFORE + request_id.encode() + line[_END:]


def settles(line: bytes) -> bool:
    """Whether the line is the result of a request, and not the end of its batch. Raises ResultDamaged."""
    found = _read(line)
    return found.response is not None or found.error is None or found.error.code not in NEVER_SETTLED


def usage_in(line: bytes) -> Usage:
    """The tokens that the answer in the line reports. Raises ResultDamaged."""
    found = _read(line)
    return Usage() if found.response is None else usage_of(bytes(found.response.body))


def _read(line: bytes) -> _Result:
    try:
        return _DECODER.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ResultDamaged(f"a line of results is not JSON: {error}") from error


def _digest(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError as error:
        raise ResultDamaged(f"{digits!r} is not the id of a request") from error
