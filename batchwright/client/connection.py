"""Helps to read response streams of the API: splits them into lines, parses events, and decides how long to
wait before connecting again. Both clients, synchronous and asynchronous, use this module.
"""

from urllib.parse import quote

import httpx
import httpx2
from openai import APIConnectionError, APIStatusError
from openai.types import Batch

from batchwright.client.results import as_model

# Errors of requests. While a response is read, they are those of the library that sent the request.
ERRORS = (APIConnectionError, APIStatusError, httpx.RequestError, httpx2.RequestError)
# The API sends something at least every 15 s; a connection that is silent for longer is dead.
EVENTS_TIMEOUT_SECONDS = 35.0
RESULTS_TIMEOUT_SECONDS = 120.0
RECONNECT_SECONDS = 2.0  # pause after the API has ended a stream, and after the first error
_MAX_PAUSE_SECONDS = 30.0
_MAX_FAILURES = 30  # failures in a row, which take about 15 minutes
ENDED = ("completed", "failed", "expired", "cancelled")


def batch_path(batch_id: str, below: str) -> str:
    """Return the API path of a batch, relative to the client's base URL.

    Args:
        below: rest of the path after the batch's id. With `/x/pause`, the result is
            `/batches/batch_1/x/pause`.
    """
    return f"/batches/{quote(batch_id, safe='')}{below}"


def has_ended(batch: Batch) -> bool:
    """Return True if the batch has ended and its files are written."""
    match (batch.model_extra or {}).get("x_batchwright"):
        case {"files_pending": True}:
            return False
        case _:
            return batch.status in ENDED


class Patience:
    """A rule that decides, after an error, if and when a client connects to the API again.

    After 30 errors in a row without data from the API, `pause_after` raises the last error.
    """

    def __init__(self) -> None:
        self._failures = 0

    def reset(self) -> None:
        """Set the number of errors to 0. Call this when the API has sent data."""
        self._failures = 0

    def pause_after(self, error: Exception) -> float:
        """Return the number of seconds to wait before connecting again.

        Raises:
            Exception: `error` itself, if it is not temporary, or if it is the 30th error in a row without
                data from the API.
        """
        self._failures += 1
        is_rejected = isinstance(error, APIStatusError) and not (
            error.status_code in (408, 429) or error.status_code >= 500
        )
        if is_rejected or self._failures >= _MAX_FAILURES:
            raise error
        return min(RECONNECT_SECONDS * 2 ** (self._failures - 1), _MAX_PAUSE_SECONDS)


class Lines:
    """A splitter that divides a response of the API into lines of text while the response arrives in pieces.

    Only a line feed ends a line. Other line separators, such as U+2028, may be inside JSON texts.
    """

    def __init__(self) -> None:
        self._pieces = list[bytes]()

    def feed(self, piece: bytes) -> list[bytes]:
        """Add the next piece of the response. Return the lines that are now complete, without line feeds."""
        first, *others = piece.split(b"\n")
        self._pieces.append(first)
        if not others:
            return []
        lines = [b"".join(self._pieces), *others]
        self._pieces = [lines.pop()]
        return lines

    def rest(self) -> bytes:
        """Return the last line of the response if it does not end with a line feed; otherwise no bytes."""
        return b"".join(self._pieces)


class Events:
    """A parser of the event stream (Server-Sent Events) of one batch.

    A stream may continue over several connections.
    """

    def __init__(self) -> None:
        self._lines = Lines()
        self._data = b""
        self._id: str | None = None

    def connect(self) -> dict[str, str]:
        """Prepare for a new connection, and return the headers to send.

        With these headers, the API continues after the last event that was received.
        """
        self._lines, self._data = Lines(), b""
        return {} if self._id is None else {"Last-Event-ID": self._id}

    def feed(self, piece: bytes) -> Batch | None:
        """Add the next piece of the stream. Return the batch in the last event that this piece completes.

        Return None if the piece completes no event.
        """
        batch = None
        for line in self._lines.feed(piece):
            name, _, value = line.partition(b": ")
            if name == b"data":
                self._data = value
            elif name == b"id":  # the API sends it last, so the event is complete
                self._id = value.decode()
                batch = as_model(Batch, self._data)
        return batch
