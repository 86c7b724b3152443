"""Whether an answer that says 2xx holds a result; bodies are looked at, content types are not (R8)."""

import re
from typing import NamedTuple

import msgspec

from batchwright.rules.answers import is_json

_DIGITS = re.compile(rb'"?([45]\d\d)"?')
# Whoever has one of these has answered: responses and videos say at `error` how a job of theirs ended.
_RESULTS = frozenset({"choices", "data", "output", "results", "id"})

_Fields = dict[str, msgspec.Raw]
_fields = msgspec.json.Decoder(_Fields)
_items = msgspec.json.Decoder(list[msgspec.Raw])


class Problem(NamedTuple):
    """`message` is a sentence without anything of the body, `status` what the body says it should have been.

    `detail` is the body's own word, for the line alone; both may be empty, the status 0.
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


def problem_of(status: int, body: bytes) -> Problem | None:
    """None: it is an object, and no error."""
    if not is_json(body):
        return Problem(f"The backend answered {status} with a body that is not JSON.")
    if body.lstrip()[:1] != b"{":
        return Problem(f"The backend answered {status} with JSON that is no object.")
    return _said_error(status, body) if b'"error"' in body else None


def embeddings_problem(asked: bytes, answer: bytes) -> str:
    """What is wrong with the number or the indexes of the embeddings; empty: nothing.

    Their order is free: each says its place itself. Where none does, their number alone is checked.
    """
    wanted = _inputs(asked)
    try:
        places = [item.index for item in _embeddings.decode(answer).data]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "The backend's answer holds no list of embeddings."
    if wanted is None:
        return ""
    if len(places) != wanted:
        return f"The backend answered with {len(places)} embeddings for {wanted} inputs."
    told = [place for place in places if place is not None]
    if told and sorted(told) != list(range(wanted)):
        return f"The indexes of the backend's embeddings are not 0 to {wanted - 1}, each once."
    return ""


def _said_error(status: int, body: bytes) -> Problem | None:
    fields = _fields.decode(body)
    error = bytes(fields.get("error", b"null"))
    is_error = bytes(fields.get("object", b"")) == b'"error"'
    if not is_error and (error in (b"null", b"false", b'""', b"{}") or _RESULTS & fields.keys()):
        return None
    inner = _fields.decode(error) if error.startswith(b"{") else fields
    named = next((code for key in ("code", "status", "status_code") if (code := _status(inner.get(key)))), 0)
    said = f"The backend answered {status} with an error{f' of {named}' if named else ''} in its body."
    return Problem(said, named, _text(inner.get("message")) or _text(fields.get("error")))


def _status(value: msgspec.Raw | None) -> int:
    found = _DIGITS.fullmatch(bytes(value)) if value is not None else None
    return int(found[1]) if found else 0


def _text(value: msgspec.Raw | None) -> str:
    text = bytes(value) if value is not None else b""
    return msgspec.json.decode(text, type=str)[:_DETAIL_CHARACTERS] if text.startswith(b'"') else ""


def _inputs(body: bytes) -> int | None:
    """How many texts or arrays of tokens a request asks about; None where that cannot be seen."""
    try:
        asked = bytes(_fields.decode(body).get("input", b""))
        if asked.startswith(b'"'):
            return 1
        items = _items.decode(asked)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    tokens = bool(items) and bytes(items[0])[:1] not in (b'"', b"[")
    return 1 if tokens else len(items)
