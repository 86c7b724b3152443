"""Converts the lines of a batch's files to results of a message batch, as a stream."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

import msgspec

from batchwright.api.routes.anthropic.error_format import error_type
from batchwright.api.routes.anthropic.message_batch_objects import ended_without_files
from batchwright.contracts.api_objects.anthropic import ErrorType
from batchwright.contracts.errors import LINE_MESSAGES, LineCode
from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow, FileRow
from batchwright.rules.input.line_splitter import InputLine, LineSplitter
from batchwright.rules.json_text import replace_lone_surrogates
from batchwright.rules.results.dead_letters import error_summary
from batchwright.rules.results.output_lines import ResultDamaged
from batchwright.storage.base import Storage

_MAX_LINE_BYTES = 2**31
_RESPONSE_END = b'},"error":null}'  # follows the body in a line with a response
_CANCELED, _EXPIRED = b'{"type":"canceled"}', b'{"type":"expired"}'
_SUCCEEDED = b'{"type":"succeeded","message":%b}'
_RESULT = b'{"custom_id":%b,"result":%b}\n'
_LINE_ERROR_TYPES: dict[str, ErrorType] = {
    LineCode.INVALID_REQUEST: "invalid_request_error",
    LineCode.MODEL_NOT_FOUND: "not_found_error",
    LineCode.POLICY_REJECTED: "permission_error",
    LineCode.REQUEST_TIMEOUT: "timeout_error",
}
_UNSENT: dict[str, bytes] = {LineCode.BATCH_CANCELLED: _CANCELED, LineCode.BATCH_EXPIRED: _EXPIRED}
_UNSENT_BY_STATUS = {BatchStatus.CANCELLED: _CANCELED, BatchStatus.EXPIRED: _EXPIRED}


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw


class _LineError(msgspec.Struct):
    code: str
    message: str = ""


class _Line(msgspec.Struct):
    """One line of an output, error or input file."""

    custom_id: msgspec.Raw
    response: _Response | None = None
    error: _LineError | None = None


class _BackendError(msgspec.Struct):
    type: ErrorType
    message: str


class _BackendErrorBody(msgspec.Struct):
    error: _BackendError


class _Details(msgspec.Struct):
    type: ErrorType
    message: str


class _Error(msgspec.Struct):
    error: _Details
    type: str = "error"
    request_id: None = None


class _Errored(msgspec.Struct):
    error: _Error
    type: str = "errored"


_LINE, _BACKEND_ERROR = msgspec.json.Decoder(_Line), msgspec.json.Decoder(_BackendErrorBody)
_encode = msgspec.json.Encoder().encode


async def results(row: BatchRow, files: Sequence[FileRow], storage: Storage) -> AsyncGenerator[bytes]:
    """Yield the results of an ended batch in Anthropic's format, as JSON lines. Many lines are joined into
    each yielded value.

    Args:
        row: the batch's row.
        files: the output file and the error file. If the batch has neither, pass the batch's input file. The
            result of each request in this file then says only how the batch ended.
        storage: storage that contains the files.

    Raises:
        ObjectMissing: the content of a file was deleted.
        ResultDamaged: a line of a file is not valid.
    """
    translator = _InputTranslator(row) if ended_without_files(row) else _ResultTranslator()
    for file in files:
        async for piece in _translated(storage.read(file.storage_key), translator):
            yield piece


async def _translated(pieces: AsyncIterator[bytes], translator: "_ResultTranslator") -> AsyncGenerator[bytes]:
    splitter = LineSplitter(_MAX_LINE_BYTES)

    def translate(lines: Iterator[InputLine]) -> bytes:
        return b"".join([translator.translate(line.data or b"") for line in lines])

    async for piece in pieces:
        yield await asyncio.to_thread(translate, splitter.feed(piece))
    yield translate(splitter.finish())


class _ResultTranslator:
    """A converter of lines of output and error files to Anthropic's format.

    In a line with a successful response, the body of the response is copied byte for byte. Only the JSON
    around it is replaced.
    """

    def translate(self, data: bytes) -> bytes:
        """Return the result for one line as JSON, with a newline.

        Raises:
            ResultDamaged: the line is not valid.
        """
        line = _read(data)
        return _RESULT % (line.custom_id, self.result(data, line))

    def result(self, data: bytes, line: _Line) -> bytes:
        response, error = line.response, line.error or _LineError("")
        if response is None:
            unsent = _UNSENT.get(error.code)
            return unsent or _errored(_LINE_ERROR_TYPES.get(error.code, "api_error"), error.message)
        if 200 <= response.status_code < 300:
            # The bytes of `data`, because lone surrogates are replaced in `line`.
            end = len(data) - len(_RESPONSE_END)
            return _SUCCEEDED % data[end - len(memoryview(response.body)) : end]
        return _response_error(response.status_code, bytes(response.body))


class _InputTranslator(_ResultTranslator):
    """A converter of input lines to results, for a batch that ended without files. All lines get the same
    result.
    """

    def __init__(self, row: BatchRow) -> None:
        message = row.errors[0].message if row.errors else LINE_MESSAGES[LineCode.BATCH_FAILED]
        self._result = _UNSENT_BY_STATUS.get(row.status) or _errored("api_error", message)

    def result(self, data: bytes, line: _Line) -> bytes:
        return self._result


def _read(data: bytes) -> _Line:
    try:
        return _LINE.decode(replace_lone_surrogates(data))
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ResultDamaged(f"a line of results is not valid: {error}") from error


def _response_error(status: int, body: bytes) -> bytes:
    """Return the JSON result for a request to which the backend responded with an error.

    An error in Anthropic's format keeps its type. For all other errors, the HTTP status decides the type.
    """
    try:
        found = _BACKEND_ERROR.decode(body).error
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        if body.startswith(b'"'):  # the response was not JSON
            body = msgspec.json.decode(body, type=str).encode()
        return _errored(error_type(status), error_summary(status, body))
    return _errored(found.type, found.message)


def _errored(kind: ErrorType, message: str) -> bytes:
    return _encode(_Errored(_Error(_Details(kind, message))))
