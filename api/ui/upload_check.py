"""Checks the lines of a batch's input while the file is uploaded."""

import asyncio
from collections.abc import Sequence

from pydantic import BaseModel, ValidationError
from starlette.types import Message, Receive

from batchwright.contracts.terms import Endpoint, Profile
from batchwright.rules.input.input_validator import InputValidator
from batchwright.rules.input.validation_errors import ValidationErrors
from batchwright.settings import Settings

FIRST_LINE_BYTES = 64 * 1024
_MAX_LINES = 1_000_000  # the memory for their `custom_id`s is limited; the estimate checks all lines


class _FirstLine(BaseModel):
    url: str = ""


def endpoint_of(start: bytes, endpoints: Sequence[str]) -> str:
    """Return the endpoint of a batch input: the `url` in its first line.

    Return `/v1/chat/completions` if this `url` is not one of `endpoints`, or if the line is not JSON or
    is not complete in `start`.

    Args:
        start: first bytes of the file.
    """
    try:
        url = _FirstLine.model_validate_json(start.partition(b"\n")[0]).url
    except ValidationError:  # a longer line, or none of JSON: the estimate tells
        url = ""
    return url if url in endpoints else Endpoint.CHAT_COMPLETIONS


class UploadCheck:
    """A check of the lines of one upload while the lines arrive. The rules are those of ingestion, the step
    of a batch that reads the input later.

    At most a million lines are checked. Memory holds only the current line, a hash of each `custom_id` and
    the first 1,000 problems.
    """

    def __init__(
        self, settings: Settings, endpoints: Sequence[str], size: int, *, is_checked: bool = True
    ) -> None:
        """Create the check of one upload.

        Args:
            endpoints: endpoints that a batch may have.
            size: number of bytes in the body of the request; 0 if it is not known.
            is_checked: False if the lines are not checked. The object then only counts the received bytes.
        """
        self.received, self.size, self.is_checked = 0, size, is_checked
        self._profile, self._endpoints = settings.profile, endpoints
        self._limits = settings.input_limits._replace(max_lines=min(settings.max_lines, _MAX_LINES))
        self._start, self._validator = b"", None

    @property
    def lines(self) -> int:
        """Number of lines that were checked so far."""
        return min(self._validator.total, self._limits.max_lines) if self._validator else 0

    @property
    def is_full(self) -> bool:
        """True if the file has more lines than this object checks."""
        return self._validator is not None and self._validator.is_full

    @property
    def errors(self) -> ValidationErrors:
        return self._validator.errors if self._validator else ValidationErrors()

    def counting(self, receive: Receive) -> Receive:
        """Return an ASGI `receive` function that also counts the received bytes."""

        async def counted() -> Message:
            message = await receive()
            self.received += len(message.get("body", b""))
            return message

        return counted

    async def feed(self, piece: bytes) -> None:
        """Add the next bytes of the file, and check the lines that are now complete."""
        if self.is_full:
            return
        await asyncio.to_thread(self._check, piece)

    def _check(self, piece: bytes) -> None:
        if self._validator is None:
            self._start += piece
            if b"\n" not in piece and len(self._start) < FIRST_LINE_BYTES:
                return
            piece, self._start = self._start, b""
            endpoint = Endpoint(endpoint_of(piece, self._endpoints))
            self._validator = InputValidator(endpoint, Profile(self._profile), self._limits)
        for _ in self._validator.feed(piece):
            pass
