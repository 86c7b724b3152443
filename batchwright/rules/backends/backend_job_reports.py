"""Parse a backend's report on an asynchronous job: still running, done with its result, or failed."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from batchwright.contracts.model_registry.backend_job_config import JobConfig
from batchwright.rules.json_text import (
    check_nesting,
    is_json,
    member_name,
    object_members,
    replace_lone_surrogates,
)

DONE_STATUSES = frozenset({"success", "succeeded", "completed", "done"})
FAILED_STATUSES = frozenset({"failed", "error", "cancelled", "canceled", "expired"})
_MAX_ID_CHARACTERS = 512
_MAX_ERROR_CHARACTERS = 500
_Fields = Mapping[str, msgspec.Raw]
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class JobState(Enum):
    """The state of an asynchronous job in a backend, derived from the status that the backend reports."""

    RUNNING = auto()
    DONE = auto()
    FAILED = auto()


class JobReport(NamedTuple):
    """A backend's report on an asynchronous job, a request that the backend answers later.

    Attributes:
        state: what the status means: running, done or failed.
        status: the status as the backend wrote it; empty if it is missing.
        job_id: id of the job; empty if it is missing.
        result: the response for the line, unchanged; empty if the job is not done.
        error: the error message; empty if the job has not failed.
        is_final: True if the backend says that a retry is pointless.
    """

    state: JobState
    status: str = ""
    job_id: str = ""
    result: bytes = b""
    error: str = ""
    is_final: bool = False


class InvalidJobReport(ValueError):
    """Raised if a backend's report on a job cannot be used.

    The message completes a sentence that begins with "The backend". Example: "sent a body that is not JSON".
    """


def parse_job_report(body: bytes, config: JobConfig) -> JobReport:
    """Parse a backend's report on an asynchronous job.

    A job with an unknown or missing status counts as still running.

    Args:
        body: body of a response, or of a callback (a request that the backend sends to report the end).
        config: which fields of the report have the status, the id and the result.

    Raises:
        InvalidJobReport: the body is not a JSON object, or the job is done but `job_result` finds no result.
    """
    if not is_json(body):
        raise InvalidJobReport("sent a body that is not JSON")
    fields = _fields_of(body)
    if fields is None:
        raise InvalidJobReport("sent JSON that is not an object")
    job_id = _id_of(fields, config)
    status = _as_text(_value_at(fields, config.status_field)).strip()
    match status.lower():
        case lower if lower in DONE_STATUSES:
            return JobReport(JobState.DONE, status, job_id, job_result(body, config))
        case lower if lower in FAILED_STATUSES:
            is_final = bytes(fields.get("retryable", b"")) == b"false"
            return JobReport(JobState.FAILED, status, job_id, error=_error_of(fields), is_final=is_final)
        case _:
            return JobReport(JobState.RUNNING, status, job_id)


def job_result(body: bytes, config: JobConfig) -> bytes:
    """Return the line's response, taken from the report on its finished job.

    The setting `result_field` of `config` names the report's field that has the response. If the setting is
    empty, the response is the report's field `result`. If the setting is empty and `result` is missing or
    null, the response is the whole report.

    Raises:
        InvalidJobReport: the report does not have the field that `result_field` names.
    """
    fields = _fields_of(body) or {}
    if not config.result_field:
        result = fields.get("result", b"")
        return body if bytes(result) in (b"", b"null") else bytes(result)
    found = _value_at(fields, config.result_field)
    if found is None:
        raise InvalidJobReport(f"sent no result at {config.result_field}")
    return bytes(found)


def job_path(template: str, job_id: str) -> str:
    """Return the URL path `template`, in which the percent-encoded job id replaces `{id}`."""
    return template.replace("{id}", quote(job_id, safe=""))


def _id_of(fields: _Fields, config: JobConfig) -> str:
    """Return the job's id from a report.

    Return an empty string if the id is missing, or if the id cannot be used in a URL path, such as `..`.
    """
    names = [config.id_field] if config.id_field else ["job_id", "id"]
    for name in names:
        found = _as_text(_value_at(fields, name))
        if found and len(found) <= _MAX_ID_CHARACTERS and found.isprintable() and found not in (".", ".."):
            return found
    return ""


def _error_of(fields: _Fields) -> str:
    for name in ("error", "message", "detail"):
        found = fields.get(name)
        inner = None if found is None else _fields_of(bytes(found))
        message = _as_text(found if inner is None else inner.get("message"))
        if message:
            return message[:_MAX_ERROR_CHARACTERS]
    return ""


def _value_at(fields: _Fields, path: str) -> msgspec.Raw | None:
    """Return the value of a field; None if the field is missing.

    The field may be nested: the path `a.b` is the field `b` of the object in the field `a`.
    """
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
        check_nesting(body)
        return _decode_fields(body)
    except msgspec.ValidationError:
        return None
    except msgspec.DecodeError:
        return _fields_with_lone_surrogates(body)
    except (RecursionError, UnicodeDecodeError):
        return None


def _fields_with_lone_surrogates(body: bytes) -> _Fields | None:
    """Read the fields of a JSON object that the normal parser rejects because of lone surrogates.

    A lone surrogate is half of a UTF-16 pair. Return None if `body` is not a JSON object, or if it has no
    lone surrogates.
    """
    whole = replace_lone_surrogates(body)
    if whole is body or not whole.lstrip().startswith(b"{") or not is_json(whole):
        return None
    return {
        member_name(member): msgspec.Raw(body[member.start : member.end]) for member in object_members(body)
    }


def _as_text(raw: msgspec.Raw | None) -> str:
    """Return the string or integer `raw` as text. Return an empty string for any other value."""
    if raw is None:
        return ""
    try:
        value = msgspec.json.decode(replace_lone_surrogates(bytes(raw)), type=str | int | None)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return "" if value is None else str(value)
