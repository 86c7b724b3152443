"""Read the lines of output and error files, as clients of the API do."""

from dataclasses import dataclass
from typing import Self

import msgspec

from batchwright.rules.json_text import replace_lone_surrogates
from batchwright.rules.results.error_tally import line_error


class LineError(msgspec.Struct, frozen=True):
    """The reason why a line failed.

    Attributes:
        code: error code of the API, or `http_` and the status with which the backend answered.
        message: message of the API or the backend, cut to 300 characters.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class LineResult:
    """The result of one request, read from a line of an output or error file.

    Attributes:
        id: `batch_req_...` id of the line.
        custom_id: custom id of the request.
        status_code: HTTP status with which the backend answered; None if there was no answer.
        error: why the request failed; None if it completed.
        content: body of the backend's response as JSON, without line breaks; empty if there is none.
    """

    id: str
    custom_id: str
    status_code: int | None
    error: LineError | None
    content: bytes

    @classmethod
    def parse(cls, line: bytes, *, failed: bool) -> Self:
        """Parse one line of an output or error file.

        Args:
            failed: True for a line of the error file, False for a line of the output file.

        Raises:
            msgspec.MsgspecError: the line does not have the form of such a file.
        """
        found = _DECODER.decode(replace_lone_surrogates(line))
        error = None
        if failed:
            counted = line_error(line)
            error = LineError(counted.code, counted.example.message)
        response = found.response
        if response is None:
            return cls(found.id, found.custom_id, None, error, b"")
        return cls(found.id, found.custom_id, response.status_code, error, bytes(response.body))

    @property
    def body(self) -> object:
        """Parsed body of the backend's response, usually a dict; None if the backend did not answer."""
        return msgspec.json.decode(self.content) if self.content else None


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw = msgspec.Raw(b"")


class _Line(msgspec.Struct):
    id: str
    custom_id: str
    response: _Response | None


_DECODER = msgspec.json.Decoder(_Line)
