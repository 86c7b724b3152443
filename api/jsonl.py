"""Whether a file can be a batch's input: it is not empty, and its first line is JSON."""

from api.errors import ApiError
from batchwright.rules.lines import Line, Splitter, is_json


class FirstLine:
    """Fed with the file's pieces, in memory bounded by the longest line allowed."""

    def __init__(self, max_line_bytes: int) -> None:
        self._splitter = Splitter(max_line_bytes)
        self._line: Line | None = None
        self._bytes = 0

    def feed(self, piece: bytes) -> None:
        self._bytes += len(piece)
        if self._line is None:
            self._line = next(self._splitter.feed(piece), None)

    def check(self) -> None:
        """Raises ApiError if it shows already that the file is no input.

        A first line too long to look at is left to validation, which names its line.
        """
        if self._line is not None and self._line.data is not None and not is_json(self._line.data):
            raise _not_jsonl()

    def finish(self) -> None:
        """The same for the whole file."""
        if not self._bytes:
            raise _not_jsonl()
        self._line = self._line or next(self._splitter.finish(), None)
        self.check()


def _not_jsonl() -> ApiError:
    return ApiError(400, "Invalid file format for Batch API. Must be .jsonl")
