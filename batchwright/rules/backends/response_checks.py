"""Check if the body of a response with status 2xx contains a result. The content type is ignored."""

import re
from typing import NamedTuple

import msgspec

from batchwright.rules.json_text import is_json, replace_lone_surrogates

_ERROR_STATUS = re.compile(rb'"?([45]\d\d)"?')
# A body with one of these fields is a result even if it has `error`. Responses and videos use this field
# for the state of their own jobs.
_RESULTS = frozenset({"choices", "data", "output", "results", "id"})

_Fields = dict[str, msgspec.Raw]
_fields = msgspec.json.Decoder(_Fields)
_items = msgspec.json.Decoder(list[msgspec.Raw])


class ResponseProblem(NamedTuple):
    """The reason why a response with status 2xx is not a result.

    Attributes:
        message: the reason, as a sentence without any text from the body.
        status: the status that the body names; 0 if the body names no status.
        detail: the body's own error message; may be empty.
    """

    message: str
    status: int = 0
    detail: str = ""


class _Item(msgspec.Struct):
    index: int | None = None


class _Embeddings(msgspec.Struct):
    data: list[_Item]


_embeddings = msgspec.json.Decoder(_Embeddings)
_DETAIL_CHARACTERS = 200


def find_problem(status: int, body: bytes) -> ResponseProblem | None:
    """Return the problem with the body of a 2xx response; None if the body is a result.

    A result is a JSON object that is not an error.

    Args:
        status: HTTP status of the response.
        body: body of the response.
    """
    if not is_json(body):
        return ResponseProblem(
            f"The backend answered {status} with a body that is not JSON, or is nested too deeply."
        )
    if body.lstrip()[:1] != b"{":
        return ResponseProblem(f"The backend answered {status} with JSON that is not an object.")
    return _error_in_body(status, body) if b'"error"' in body else None


def find_embeddings_problem(request: bytes, response: bytes) -> str:
    """Check the embeddings in the response to an embeddings request.

    Return the problem as a sentence; empty if all embeddings are correct. There must be one embedding for
    each input, in any order.

    Args:
        request: body of the request.
        response: body of the response.
    """
    expected = _count_inputs(request)
    try:
        found_indexes = [item.index for item in _embeddings.decode(replace_lone_surrogates(response)).data]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "The backend's response has no list of embeddings."
    if expected is None:
        return ""
    if len(found_indexes) != expected:
        return f"The backend answered with {len(found_indexes)} embeddings for {expected} inputs."
    indexes = [place for place in found_indexes if place is not None]
    if indexes and sorted(indexes) != list(range(expected)):
        return f"The indexes of the backend's embeddings are not 0 to {expected - 1}, each once."
    return ""


def _error_in_body(status: int, body: bytes) -> ResponseProblem | None:
    fields = _fields.decode(replace_lone_surrogates(body))
    error = bytes(fields.get("error", b"null"))
    is_error = bytes(fields.get("object", b"")) == b'"error"'
    if not is_error and (error in (b"null", b"false", b'""', b"{}") or _RESULTS & fields.keys()):
        return None
    inner = _fields.decode(error) if error.startswith(b"{") else fields
    codes = (_status(inner.get(key)) for key in ("code", "status", "status_code"))
    named = next((code for code in codes if code), 0)
    message = f"The backend answered {status} with an error{f' of {named}' if named else ''} in its body."
    return ResponseProblem(
        message, named, _short_text(inner.get("message")) or _short_text(fields.get("error"))
    )


def _status(value: msgspec.Raw | None) -> int:
    found = _ERROR_STATUS.fullmatch(bytes(value)) if value is not None else None
    return int(found[1]) if found else 0


def _short_text(value: msgspec.Raw | None) -> str:
    text = bytes(value) if value is not None else b""
    return msgspec.json.decode(text, type=str)[:_DETAIL_CHARACTERS] if text.startswith(b'"') else ""


def _count_inputs(body: bytes) -> int | None:
    """Return the number of inputs in an embeddings request; None if it cannot be determined."""
    try:
        inputs = bytes(_fields.decode(replace_lone_surrogates(body)).get("input", b""))
        if inputs.startswith(b'"'):
            return 1
        items = _items.decode(inputs)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    tokens = bool(items) and bytes(items[0])[:1] not in (b'"', b"[")
    return 1 if tokens else len(items)
