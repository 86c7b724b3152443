"""Pass on the Server-Sent Events of a backend, and read the token usage in them."""

import msgspec

from batchwright.rules.results.token_usage import NO_TOKENS, Tokens, tokens_of

_DATA = b"data:"
_USAGE = b'"usage"'
_ABSENT = msgspec.Raw(b"")


class _Event(msgspec.Struct):
    response: msgspec.Raw = _ABSENT  # an event of /v1/responses may contain the whole response
    choices: list[msgspec.Raw] | None = None


_EVENT = msgspec.json.Decoder(_Event)


class EventStream:
    """Splits a stream of server-sent events into whole lines. It also reads the token usage in the events.

    Attributes:
        usage: the last token usage that an event reported; None before the first.
        events: number of events with data so far.
    """

    def __init__(self, *, hides_usage: bool) -> None:
        """Prepare to read one stream.

        Args:
            hides_usage: True to leave out the event that contains only usage, because the client has not
                asked for it.
        """
        self._hides_usage = hides_usage
        self._rest: list[bytes] = []  # pieces of a line that is not complete
        self.usage: Tokens | None = None
        self.events = 0

    def feed(self, piece: bytes) -> bytes:
        """Return the whole lines that the next piece of the stream completes; empty if there are none."""
        end = piece.rfind(b"\n") + 1
        if not end:
            self._rest.append(piece)
            return b""
        lines = b"".join([*self._rest, piece[:end]])
        self._rest = [piece[end:]]
        return self._read(lines)

    @property
    def held_bytes(self) -> int:
        """Number of buffered bytes: the beginning of a line that is not complete yet."""
        return sum(map(len, self._rest))

    def finish(self) -> bytes:
        """Return the rest of the stream at its end: a last line without a line break, or nothing."""
        rest, self._rest = b"".join(self._rest), []
        return self._read(rest)

    def _read(self, lines: bytes) -> bytes:
        self.events += lines.count(_DATA)
        if _USAGE not in lines:
            return lines
        return b"".join(line for line in lines.splitlines(keepends=True) if self._passes(line))

    def _passes(self, line: bytes) -> bool:
        """Return True if a line is passed on to the client. Record the token usage in the line."""
        if _USAGE not in line or not line.startswith(_DATA):
            return True
        data = line.removeprefix(_DATA).strip()
        try:
            event = _EVENT.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return True
        usage = tokens_of(bytes(event.response) or data)
        if usage == NO_TOKENS:
            return True
        self.usage = usage
        return not (self._hides_usage and event.choices == [])
