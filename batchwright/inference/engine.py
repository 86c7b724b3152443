"""What sends a request and brings its whole answer; httpx's errors keep apart what was sent (R20).

never sent          httpx.ConnectError, httpx.ConnectTimeout
sent, no answer     httpx.ReadError: the connection ended before the answer did
not an answer       httpx.RemoteProtocolError: what came is not HTTP; "peer closed connection ...": a part is
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import httpx
from msgspec import Struct

Header = tuple[bytes, bytes]


class Origin(NamedTuple):
    """Whom a connection leads to."""

    secure: bool
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Target:
    """A URL, taken apart once for all requests to it."""

    url: httpx.URL
    origin: Origin
    path: bytes  # as sent, with the query
    authority: bytes  # of the host header

    @classmethod
    def of(cls, url: str) -> "Target":
        """Raises httpx.InvalidURL."""
        parsed = httpx.URL(url)
        secure = parsed.scheme == "https"
        origin = Origin(secure, parsed.host, parsed.port or (443 if secure else 80))
        return cls(parsed, origin, parsed.raw_path, parsed.netloc)


class Fixed:
    """Headers that many requests have in common: written out once."""

    __slots__ = ("headers", "text")

    def __init__(self, headers: Sequence[Header] = ()) -> None:
        self.headers, self.text = tuple(headers), lines_of(headers)


def lines_of(headers: Sequence[Header]) -> bytes:
    """As they stand in a request; each begins with the end of the line before."""
    return b"".join([b"\r\n%b: %b" % header for header in headers])


_NONE = Fixed()


class Request(Struct, eq=False):
    """`fixed` and `headers` hold neither host nor content-length; values have no line breaks.

    `first_byte` and `idle` are seconds until the answer begins, and between two pieces of it; 0: no limit.
    """

    method: bytes
    target: Target
    headers: list[Header]
    body: bytes = b""
    first_byte: float = 0.0
    idle: float = 0.0
    fixed: Fixed = _NONE


class Answer(Struct):
    """Names of headers in lower case, the last of a name; the body as it came, maybe packed."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class AnswerTooLarge(Exception):
    """The body passed the limit; it was not read to its end."""


class Exchange(Protocol):
    """One that nobody awaits."""

    def call_off(self) -> None:
        """Closes its connection; nothing is told. Not after its end was."""
        ...


Ended = Callable[[Answer | Exception], None]  # told once of an exchange's end; it raises nothing


class Engine(Protocol):
    async def exchange(self, request: Request, *, most_bytes: int, seconds: float) -> Answer:
        """One request, one answer: no retry, no redirect, no cookie. A cancelled call closes its connection.

        Raises:
            httpx.TransportError: as above.
            TimeoutError: it took longer than `seconds`, or than the request says; it may have been sent.
            AnswerTooLarge: the body is larger than `most_bytes`.
        """
        ...

    def begin(self, request: Request, *, most_bytes: int, seconds: float, ended: Ended) -> Exchange | None:
        """The same where the request can go out at once; `ended` is told what `exchange` returns or raises.

        None: it cannot, and nothing was done.
        """
        return None

    async def retire(self) -> None:
        """From now on no connection is kept: each is closed when what is under way on it ends."""
        ...

    async def aclose(self) -> None:
        """Closes all there are, also those in use where they are known."""
        ...
