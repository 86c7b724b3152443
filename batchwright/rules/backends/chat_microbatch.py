"""Microbatches of chats: several chats in one request, which the operator's own code joins and splits.

There is no common protocol for several chats in one request. Therefore the operator writes an executor: an
object that joins the chats and splits the response. The settings name this object. This module decides which
chats may share a request, calls the executor, and checks its results.
"""

import reprlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import msgspec

from batchwright.rules.backends.microbatch import (
    JsonFields,
    MicrobatchFailed,
    MicrobatchPart,
    MicrobatchResult,
)
from batchwright.rules.json_text import replace_lone_surrogates

_BYTES_A_TOKEN = 4
_object = msgspec.json.Decoder(JsonFields)
# With these parameters, a response is more than one plain message.
_NOT_SHARED = ("tools", "tool_choice", "functions", "function_call", "audio", "modalities", "logprobs")
_EMPTY = (b"null", b"[]", b"false")


class ChatResult(NamedTuple):
    """The result of one chat: status and body, as if the chat had been sent alone.

    If `status` is None, the chat failed, and the body is an error message in plain text.
    """

    status: int | None
    body: bytes


class ChatExecutor(Protocol):
    """The interface of the operator's own code that joins chats into one request and splits the response.

    The setting `chat_executor` names the object with this interface. If one of its methods raises an
    exception, the chats are sent one by one.
    """

    def join(self, params: bytes, conversations: Sequence[bytes]) -> bytes:
        """Return the body of one request that contains several chats.

        Args:
            params: JSON object with the parameters that all these chats have in common, including the model.
            conversations: for each chat, its messages as a JSON array.
        """
        ...

    def split(self, response: bytes, count: int) -> Sequence[ChatResult]:
        """Return the results of the chats in a response, in the order of the `conversations` in `join`.

        Args:
            response: body of the response to the joined request.
            count: number of chats. The returned list must have one result for each chat.
        """
        ...


class ChatAdapter:
    """The adapter that joins chats into one request and splits the response.

    It calls the operator's own code (the executor), and checks what this code returns.
    """

    def __init__(self, executor: ChatExecutor) -> None:
        self._executor = executor

    def part(self, body: bytes) -> MicrobatchPart | None:
        try:
            fields = _object.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        messages = bytes(fields.pop("messages", b""))
        if not messages.startswith(b"[") or not _is_plain(fields):
            return None
        params = msgspec.json.encode(dict(sorted(fields.items())))
        return MicrobatchPart(params, messages, max(1, len(messages) // _BYTES_A_TOKEN))

    def join(self, parts: Sequence[MicrobatchPart]) -> bytes:
        with _isolated():
            return memoryview(self._executor.join(parts[0].shared, [part.own for part in parts])).tobytes()

    def split(self, response: bytes, parts: Sequence[MicrobatchPart]) -> list[MicrobatchResult]:
        with _isolated():
            results = [_check_types(result) for result in self._executor.split(response, len(parts))]
        if len(results) != len(parts):
            raise MicrobatchFailed(f"{len(results)} results were returned for {len(parts)} chats")
        return [_check_result(result) for result in results]


@contextmanager
def _isolated() -> Generator[None]:
    """Return a context manager for calls of the operator's code.

    If this code raises an exception, the context manager raises MicrobatchFailed instead.
    """
    try:
        yield
    except BaseException as error:
        shown = reprlib.repr(error)  # safe even if the error's own repr fails
        raise MicrobatchFailed(f"the executor failed: {type(error).__name__}: {shown}") from None


def _check_types(result: ChatResult) -> ChatResult:
    """Check the types in a result that the operator's own code (the executor) returned for one chat.

    Return the result. Its body is converted to `bytes`.

    Raises:
        ValueError: the result does not have exactly two values, or the status is not in 200 to 599.
        TypeError: the result, the status or the body has a wrong type.
    """
    status, body = result
    if status is not None and not 200 <= status <= 599:
        raise ValueError(f"a result has the status {status}")
    return ChatResult(status, memoryview(body).tobytes())


def _is_plain(fields: JsonFields) -> bool:
    """Return True if the chat is expected to have one plain text message as its answer.

    Only such chats may share a request. A chat with tools, with several choices or with a streamed response
    is not plain.

    Args:
        fields: the fields of the chat's request body.
    """
    shown = {name: bytes(value).strip() for name, value in fields.items()}
    return (
        all(shown.get(name, b"null") in _EMPTY for name in _NOT_SHARED)
        and shown.get("stream", b"false") in _EMPTY
        and shown.get("n", b"1") in (b"1", b"null")
        and _is_text(shown.get("response_format", b"null"))
    )


def _is_text(response_format: bytes) -> bool:
    if response_format in _EMPTY:
        return True
    try:
        return bytes(_object.decode(response_format).get("type", b"")) == b'"text"'
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False


def _check_result(result: ChatResult) -> MicrobatchResult:
    if result.status is None:
        message = result.body.decode(errors="replace")[:1000]
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        return MicrobatchResult(400, msgspec.json.encode({"error": error}))
    if 200 <= result.status < 300 and not _has_usage(result.body):
        return MicrobatchResult(0, b"", "The result of a shared request has no usage of its own.")
    return MicrobatchResult(result.status, result.body)


def _has_usage(body: bytes) -> bool:
    try:
        return bytes(_object.decode(replace_lone_surrogates(body)).get("usage", b"")).strip().startswith(b"{")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
