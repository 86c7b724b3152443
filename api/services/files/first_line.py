"""Checks the first line of a batch's input while the input is uploaded."""

from msgspec.structs import replace

from batchwright.api.errors import ApiError
from batchwright.rules.input.line_parser import has_json_syntax
from batchwright.rules.input.line_splitter import InputLine, LineSplitter


class FirstLineCheck:
    """A check that the input of a batch is not empty, and that its first line is JSON."""

    def __init__(self, max_line_bytes: int) -> None:
        self._splitter = LineSplitter(max_line_bytes)
        self._line: InputLine | None = None
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the first line that are in memory, until the line is checked."""
        held = None if self._line is None else self._line.data
        return self._splitter.held_bytes if held is None else len(held)

    def feed(self, piece: bytes) -> None:
        self._bytes += len(piece)
        if self._line is None:
            self._line = next(self._splitter.feed(piece), None)

    def check(self) -> None:
        """Check the first line if it is already complete. A repeated call does nothing.

        If the line is too long, do nothing: the line is rejected later, when the batch is validated.

        Raises:
            ApiError: the first line is complete and is not JSON.
        """
        if self._line is None or self._line.data is None:
            return
        if not has_json_syntax(self._line.data):
            raise _not_jsonl()
        self._line = replace(self._line, data=None)  # the check of a long line takes 10 ms

    def finish(self) -> None:
        """Check the complete file.

        Raises:
            ApiError: the file is empty or its first line is not JSON.
        """
        if not self._bytes:
            raise _not_jsonl()
        self._line = self._line or next(self._splitter.finish(), None)
        self.check()


def _not_jsonl() -> ApiError:
    return ApiError(400, "Invalid file format for Batch API. Must be .jsonl")
