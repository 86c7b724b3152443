"""Pass on the Server-Sent Events of a backend, and read the token usage and the errors in them."""

import msgspec

from batchwright.rules.results.token_usage import NO_TOKENS, Tokens, tokens_of

_DATA = b"data:"
_USAGE, _ERROR = b'"usage"', b'"error"'
_BLANK_LINES = (b"\n\n", b"\n\r\n")  # each begins with the end of the line before
_TAIL_BYTES = 2  # one less than the longest of `_BLANK_LINES`
_ABSENT = msgspec.Raw(b"")


class _Event(msgspec.Struct):
    response: msgspec.Raw = _ABSENT  # an event of /v1/responses may contain the whole response
    choices: list[msgspec.Raw] | None = None
    error: msgspec.Raw = _ABSENT
    type: object = None


_EVENT = msgspec.json.Decoder(_Event)


class EventStream:
    """A splitter of a stream of server-sent events into whole events.

    It also finds the token usage and the errors.

    Attributes:
        usage: the last token usage that an event reported; None before the first.
        events: number of events with data so far.
        has_answered: True after the first event that is a JSON object without an error.
        has_failed: True after the first event with an error.
    """

    def __init__(self, *, hides_usage: bool) -> None:
        """Prepare to read one stream.

        Args:
            hides_usage: True to leave out the event that contains only usage, because the client has not
                asked for it.
        """
        self._hides_usage = hides_usage
        # The beginning of an event that is not complete; one buffer, because pieces may be of one byte.
        self._rest = bytearray()
        self._tail = b""  # the last bytes of `_rest`, in which the end of an event may begin
        self.usage: Tokens | None = None
        self.events = 0
        self.has_answered = self.has_failed = False

    def feed(self, piece: bytes) -> bytes:
        """Return the events that are complete with the next piece of the stream; empty if there are none.

        An event ends with an empty line. Incomplete events are not returned. So if the stream breaks off, the
        caller can still send an error as a further event.
        """
        seen = self._tail + piece
        ends = [seen.rfind(blank) + len(blank) for blank in _BLANK_LINES if blank in seen]
        if not ends:
            self._rest += piece
            self._tail = seen[-_TAIL_BYTES:]
            return b""
        end = max(ends) - len(self._tail)
        whole = bytes(self._rest) + piece[:end]
        self._rest, self._tail = bytearray(piece[end:]), piece[end:][-_TAIL_BYTES:]
        return self._read(whole)

    @property
    def held_bytes(self) -> int:
        """Number of buffered bytes: the beginning of an event that is not complete yet."""
        return len(self._rest)

    def finish(self) -> bytes:
        """Return the last event if no empty line followed it; otherwise empty bytes.

        Call this when the stream has ended.
        """
        rest, self._rest, self._tail = bytes(self._rest), bytearray(), b""
        return self._read(rest)

    def _read(self, lines: bytes) -> bytes:
        self.events += lines.count(_DATA)
        if self.has_answered and _USAGE not in lines and _ERROR not in lines:
            return lines
        return b"".join(line for line in lines.splitlines(keepends=True) if self._passes(line))

    def _passes(self, line: bytes) -> bool:
        """Return True if a line of the stream is passed on to the client.

        Record the token usage or the error that the line contains.
        """
        has_usage = _USAGE in line
        if not line.startswith(_DATA) or (self.has_answered and not has_usage and _ERROR not in line):
            return True
        data = line.removeprefix(_DATA).strip()
        try:
            event = _EVENT.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return True
        if event.type == "error" or bytes(event.error) not in (b"", b"null"):
            self.has_failed = True
        else:
            self.has_answered = True
        usage = tokens_of(bytes(event.response) or data) if has_usage else NO_TOKENS
        if usage == NO_TOKENS:
            return True
        self.usage = usage
        return not (self._hides_usage and event.choices == [])
