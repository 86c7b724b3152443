"""Read the answers of calls from result lines, and make the objects that describe calls to clients.

A call is a single request that a client sends without a file. It runs as a line of a batch.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from batchwright.contracts.calls import Call, CallAnswer, CallStatus
from batchwright.contracts.errors import LineCode
from batchwright.rules.json_text import member_name, object_members, replace_lone_surrogates

_ENDS = {"failed": CallStatus.FAILED, "incomplete": CallStatus.INCOMPLETE}
_JOB_STATUSES = {CallStatus.IN_PROGRESS: "processing", CallStatus.INCOMPLETE: "completed"}


class Response(msgspec.Struct):
    """The response of a backend, read from a line of an output or error file.

    Attributes:
        status_code: HTTP status of the response.
        body: body of the response, as JSON.
    """

    status_code: int = 0
    body: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300


class ResultError(msgspec.Struct):
    code: str = ""
    message: str = ""


class CallResult(msgspec.Struct):
    """A parsed line of an output or error file. Either `response` or `error` is None."""

    custom_id: str = ""
    response: Response | None = None
    error: ResultError | None = None


class CallError(NamedTuple):
    """The reason why a call (single request of a client) failed or was cancelled.

    `status` is the HTTP status of the backend's response; 0 if there was no response.
    """

    status: int
    code: str
    message: str


class _Outcome(msgspec.Struct):
    status: str | None = None


class _ErrorDetails(msgspec.Struct):
    message: str | None = None
    code: str | int | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorDetails | str | None = None
    message: str | None = None


_RESULT = msgspec.json.Decoder(CallResult)
_OUTCOME = msgspec.json.Decoder(_Outcome)
_ERROR_BODY = msgspec.json.Decoder(_ErrorBody)


def read_result(line: bytes) -> CallResult:
    """Parse one line of an output or error file.

    If the response is nested too deeply to be read, the result has an error instead of the response.

    Raises:
        msgspec.MsgspecError: the line is not valid.
    """
    whole = replace_lone_surrogates(line)
    try:
        return _RESULT.decode(whole)
    except RecursionError:
        values = {member_name(found): whole[found.start : found.end] for found in object_members(whole)}
        custom_id = msgspec.json.decode(values["custom_id"], type=str)
        error = ResultError(LineCode.INVALID_RESPONSE, "The backend's response is nested too deeply.")
        return CallResult(custom_id, error=error)


def answers_of(lines: Iterable[bytes]) -> list[CallAnswer]:
    """Parse lines of output or error files. Return one answer for each line, in the order of the lines.

    Each line is the result of a call: a single request of a client, which runs as a line of a batch.
    """
    answers = list[CallAnswer]()
    for line in lines:
        result = read_result(line)
        answers.append(CallAnswer(id=result.custom_id, status=_status_of(result), line=line))
    return answers


def _status_of(result: CallResult) -> CallStatus:
    if result.response is None:
        cancelled = result.error is not None and result.error.code == LineCode.BATCH_CANCELLED
        return CallStatus.CANCELLED if cancelled else CallStatus.FAILED
    if not result.response.is_success:
        return CallStatus.FAILED
    try:
        outcome = _OUTCOME.decode(result.response.body).status
    except msgspec.MsgspecError:
        return CallStatus.COMPLETED
    return _ENDS.get(outcome or "", CallStatus.COMPLETED)


def success_of(call: Call) -> Response | None:
    """Return the successful response to a call (single request of a client); None if there is none."""
    response = None if call.answer is None else read_result(call.answer).response
    return response if response is not None and response.is_success else None


def error_of(call: Call) -> CallError:
    """Return the reason why a call (single request of a client) has failed or was cancelled."""
    if call.answer is None:
        if call.status is CallStatus.CANCELLED:
            return CallError(0, "cancelled", "The call was cancelled.")
        return CallError(0, "server_error", call.error or "The call ended without an answer.")
    result = read_result(call.answer)
    if result.response is None:
        error = result.error or ResultError("server_error", "The call ended without an answer.")
        return CallError(0, error.code, error.message)
    status = result.response.status_code
    code, message = _read_error(bytes(result.response.body))
    default = "invalid_prompt" if 400 <= status < 500 else "server_error"
    return CallError(status, code or default, message or f"The backend responded with status {status}.")


def job_body(call: Call, max_bytes: int | None = None, **more: str | None) -> bytes:
    """Return the JSON with which the API describes a call as an asynchronous job (`JobObject`).

    A call is a single request that a client sends without a file.

    Args:
        call: the call, with its answer if it has one.
        max_bytes: the backend's response is left out if it is larger; None for no limit.
        more: further fields, which are added to the JSON.
    """
    fields: dict[str, object] = {
        "job_id": call.id,
        "model": call.model,
        "status": _JOB_STATUSES.get(call.status, call.status.value),
        "result": None,
        "result_omitted": False,
        "error": None,
        "created_at": int(call.created_at.timestamp()),
        "completed_at": None if call.ended_at is None else int(call.ended_at.timestamp()),
        **more,
    }
    if call.status in (CallStatus.FAILED, CallStatus.CANCELLED):
        error = error_of(call)
        fields["error"] = {"code": error.code, "message": error.message}
    elif (response := success_of(call)) is not None:
        is_small = max_bytes is None or len(bytes(response.body)) <= max_bytes
        fields["result"] = response.body if is_small else None
        fields["result_omitted"] = not is_small
    return msgspec.json.encode(fields)


def _read_error(body: bytes) -> tuple[str, str]:
    """Return the error code and the error message in a response body. If one is missing, it is empty."""
    try:
        found = _ERROR_BODY.decode(body)
    except msgspec.MsgspecError:
        return "", ""
    if isinstance(found.error, _ErrorDetails):
        code = found.error.code
        return code if isinstance(code, str) else "", found.error.message or ""
    return "", found.error or found.message or ""
