"""Chats that share a request: our rules round an executor of the user's (S1-213 to S1-226).

No common protocol takes several chats at once, so how they are joined and divided is for an object that the
settings name; which chats may share a request at all, and what each result must hold, is decided here.
"""

import reprlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import msgspec

from batchwright.rules.microbatch import CannotShare, Object, Part, Result

_BYTES_A_TOKEN = 4
_object = msgspec.json.Decoder(Object)
# What makes an answer more than one plain message (S1-219).
_ALONE = ("tools", "tool_choice", "functions", "function_call", "audio", "modalities", "logprobs")
_EMPTY = (b"null", b"[]", b"false")


class ChatResult(NamedTuple):
    """Of one chat: status and body as for a request of its own; status None: an error without form."""

    status: int | None
    body: bytes


class ChatExecutor(Protocol):
    """What the settings name as `chat_executor`. Whatever it raises, the chats are asked one by one then."""

    def join(self, params: bytes, conversations: Sequence[bytes]) -> bytes:
        """The body of one request. `params`: a JSON object of all that the chats have in common, their model
        included; `conversations`: the JSON array of messages of each."""
        ...

    def split(self, answer: bytes, count: int) -> Sequence[ChatResult]:
        """`count` results, in the order of the conversations."""
        ...


class Chats:
    """An `Adapter` of chats."""

    def __init__(self, executor: ChatExecutor) -> None:
        self._executor = executor

    def part(self, body: bytes) -> Part | None:
        try:
            fields = _object.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        messages = bytes(fields.pop("messages", b""))
        if not messages.startswith(b"[") or not _is_plain(fields):
            return None
        params = msgspec.json.encode(dict(sorted(fields.items())))
        return Part(params, messages, max(1, len(messages) // _BYTES_A_TOKEN))

    def join(self, parts: Sequence[Part]) -> bytes:
        with _isolated():
            return memoryview(self._executor.join(parts[0].shared, [part.own for part in parts])).tobytes()

    def split(self, answer: bytes, parts: Sequence[Part]) -> list[Result]:
        with _isolated():
            results = [_typed(result) for result in self._executor.split(answer, len(parts))]
        if len(results) != len(parts):
            raise CannotShare(f"{len(results)} results came for {len(parts)} chats")
        return [_checked(result) for result in results]


@contextmanager
def _isolated() -> Generator[None]:
    """What the user's code does wrong costs no line more than company, and never the worker."""
    try:
        yield
    except BaseException as error:
        said = reprlib.repr(error)  # that of their own may fail in turn
        raise CannotShare(f"the executor failed: {type(error).__name__}: {said}") from None


def _typed(result: ChatResult) -> ChatResult:
    """Raises TypeError, ValueError: it is not what the protocol says."""
    status, body = result
    if status is not None and not 200 <= status <= 599:
        raise ValueError(f"a result has the status {status}")
    return ChatResult(status, memoryview(body).tobytes())


def _is_plain(fields: Object) -> bool:
    said = {name: bytes(value).strip() for name, value in fields.items()}
    return (
        all(said.get(name, b"null") in _EMPTY for name in _ALONE)
        and said.get("stream", b"false") in _EMPTY
        and said.get("n", b"1") in (b"1", b"null")
        and _is_text(said.get("response_format", b"null"))
    )


def _is_text(response_format: bytes) -> bool:
    if response_format in _EMPTY:
        return True
    try:
        return bytes(_object.decode(response_format).get("type", b"")) == b'"text"'
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False


def _checked(result: ChatResult) -> Result:
    if result.status is None:
        message = result.body.decode(errors="replace")[:1000]
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        return Result(400, msgspec.json.encode({"error": error}))
    if 200 <= result.status < 300 and not _has_usage(result.body):
        return Result(0, b"", "The result of a shared request has no usage of its own.")
    return Result(result.status, result.body)


def _has_usage(body: bytes) -> bool:
    try:
        return bytes(_object.decode(body).get("usage", b"")).strip().startswith(b"{")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
