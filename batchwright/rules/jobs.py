"""What a backend says of a job: whether it goes on, its result byte for byte, or why it failed (S4-67)."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from batchwright.contracts.jobs import JobConfig
from batchwright.rules.answers import is_json

DONE_WORDS = frozenset({"success", "succeeded", "completed", "done"})
FAILED_WORDS = frozenset({"failed", "error", "cancelled", "canceled", "expired"})
_LONGEST_ID = 512  # characters
_LONGEST_ERROR = 500
_Fields = Mapping[str, msgspec.Raw]
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class State(Enum):
    GOES_ON = auto()
    DONE = auto()
    FAILED = auto()


class Told(NamedTuple):
    """`job_id` is empty where none is named; `result` is of a job that is done, `error` of one that failed.

    `word` is the status as it was said, empty where none was; `is_final`: asking again is vain.
    """

    state: State
    word: str = ""
    job_id: str = ""
    result: bytes = b""
    error: str = ""
    is_final: bool = False


class NotOfJob(ValueError):
    """What was said cannot be read; the message ends a sentence that begins with who said it."""


def read_told(body: bytes, config: JobConfig) -> Told:
    """Of an answer to a submit or a look, or of a call back. Raises NotOfJob."""
    if not is_json(body):
        raise NotOfJob("sent what is not JSON")
    fields = _fields_of(body)
    if fields is None:
        raise NotOfJob("sent JSON that is no object")
    job_id = _id_of(fields, config)
    word = _text(_at(fields, config.status_field)).strip()
    match word.lower():
        case status if status in DONE_WORDS:
            return Told(State.DONE, word, job_id, result_of(body, config))
        case status if status in FAILED_WORDS:
            is_final = bytes(fields.get("retryable", b"")) == b"false"
            return Told(State.FAILED, word, job_id, error=_error_of(fields), is_final=is_final)
        case _:
            return Told(State.GOES_ON, word, job_id)


def result_of(body: bytes, config: JobConfig) -> bytes:
    """The line's answer in what was said of a job that is done. Raises NotOfJob."""
    fields = _fields_of(body) or {}
    if not config.result_field:
        result = fields.get("result", b"")
        return body if bytes(result) in (b"", b"null") else bytes(result)
    found = _at(fields, config.result_field)
    if found is None:
        raise NotOfJob(f"named no result at {config.result_field}")
    return bytes(found)


def job_path(template: str, job_id: str) -> str:
    """The id cannot lead anywhere else in the path."""
    return template.replace("{id}", quote(job_id, safe=""))


def _id_of(fields: _Fields, config: JobConfig) -> str:
    """Empty where there is none that can stand in a path."""
    names = [config.id_field] if config.id_field else ["job_id", "id"]
    for name in names:
        found = _text(_at(fields, name))
        if found and len(found) <= _LONGEST_ID and found.isprintable() and found not in (".", ".."):
            return found
    return ""


def _error_of(fields: _Fields) -> str:
    for name in ("error", "message", "detail"):
        found = fields.get(name)
        inner = None if found is None else _fields_of(bytes(found))
        said = _text(found if inner is None else inner.get("message"))
        if said:
            return said[:_LONGEST_ERROR]
    return ""


def _at(fields: _Fields, path: str) -> msgspec.Raw | None:
    """`a.b` leads into the object `a`."""
    *outer, last = path.split(".")
    inner: _Fields | None = fields
    for name in outer:
        found = inner.get(name)
        inner = None if found is None else _fields_of(bytes(found))
        if inner is None:
            return None
    return inner.get(last)


def _fields_of(body: bytes) -> _Fields | None:
    try:
        return _decode_fields(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _text(raw: msgspec.Raw | None) -> str:
    """A string or a whole number as text; else nothing."""
    if raw is None:
        return ""
    try:
        value = msgspec.json.decode(raw, type=str | int | None)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return "" if value is None else str(value)
