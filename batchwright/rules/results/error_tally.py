"""Count the failed lines of a batch by error code and model, with one line of each group as an example.

A failed line is a line of the error file. If the backend answered the request, the error code of the line is
`http_` and the HTTP status, for example `http_400`. The backend's own error codes are not used, because they
are free text. If the backend did not answer, the error code is the `error.code` in the line.
"""

from collections.abc import Iterable

import msgspec

from batchwright.contracts.temporal_payloads.batch import ErrorCount, ErrorExample
from batchwright.rules.json_text import replace_lone_surrogates, storable
from batchwright.rules.results.dead_letters import error_summary
from batchwright.rules.results.output_lines import NEVER_SETTLED

OTHER = "other"  # code of lines with a new code when there are 2 * MAX_GROUPS groups
MAX_GROUPS = 20
MAX_MESSAGE_CHARACTERS = 300
MAX_CUSTOM_ID_CHARACTERS = 512


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw = msgspec.Raw(b"")


class _Error(msgspec.Struct):
    code: str = OTHER
    message: str = ""


class _FailedLine(msgspec.Struct):
    custom_id: str = ""
    response: _Response | None = None
    error: _Error | None = None


_DECODER = msgspec.json.Decoder(_FailedLine)


def line_error(line: bytes, model: str | None = None) -> ErrorCount:
    """Return the error in one line of the error file, as a count (`ErrorCount`) of one failed line.

    A line that cannot be read gets the error code `other`, because the summary of the errors must not make a
    batch fail.

    Args:
        line: the line of the error file.
        model: the model to name in the result; None to name none.
    """
    try:
        found = _DECODER.decode(replace_lone_surrogates(line))
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        found = _FailedLine()
    error = found.error or _Error()
    code, message = error.code, error.message
    if found.response is not None:
        status, body = found.response.status_code, bytes(found.response.body)
        if body.startswith(b'"'):  # the response was not JSON
            body = msgspec.json.decode(replace_lone_surrogates(body), type=str).encode()
        code, message = f"http_{status}", error_summary(status, body)
    example = ErrorExample(
        custom_id=storable(found.custom_id[:MAX_CUSTOM_ID_CHARACTERS]),
        message=storable(message[:MAX_MESSAGE_CHARACTERS]),
    )
    return ErrorCount(code=code, model=model, count=1, example=example)


class ErrorTally:
    """The numbers of failed lines, in groups with the same error code and model.

    The first line of each group is its example. The number of groups is limited:

    - If there are 20 groups, a line that fits into no group is counted in a group for its code and no model.
    - If there are 40 groups, a line with a new code is counted in the group with the code `other`. Exception:
      a line without a result, such as an unsent line of an expired batch, keeps its code.
    """

    def __init__(self, errors: Iterable[ErrorCount] = ()) -> None:
        self._counts: dict[tuple[str, str | None], int] = {}
        self._examples: dict[tuple[str, str | None], ErrorExample] = {}
        for error in errors:
            self.add(error)

    def add(self, error: ErrorCount) -> None:
        key = error.code, error.model
        if key not in self._counts and len(self._counts) >= MAX_GROUPS:
            key = error.code, None
        is_full = len(self._counts) >= 2 * MAX_GROUPS and error.code not in NEVER_SETTLED
        if key not in self._counts and is_full:
            key = OTHER, None
        self._counts[key] = self._counts.get(key, 0) + error.count
        self._examples.setdefault(key, error.example)

    def counts(self) -> list[ErrorCount]:
        """Return the groups of failed lines with their numbers, the largest group first."""
        groups = [
            ErrorCount(code=code, model=model, count=count, example=self._examples[code, model])
            for (code, model), count in self._counts.items()
        ]
        return sorted(groups, key=lambda group: (-group.count, group.code, group.model or ""))
