"""One request and its answer, apart from how they travel."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qsl


@dataclass(slots=True)
class Request:
    """`headers` has lower-case names; of a repeated header the last one counts."""

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    body: bytes

    def parameter(self, name: str) -> str | None:
        return dict(parse_qsl(self.query)).get(name)

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


@dataclass(slots=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])


class Exchange(Protocol):
    """What the server gives for one request. Exactly one of `answer`, `cut`, `abort` ends it."""

    on_gone: Callable[[], None] | None
    """Called when the client hangs up before the end."""

    @property
    def request(self) -> Request: ...

    def answer(self, answer: Answer) -> None: ...

    def cut(self, answer: Answer) -> None:
        """Send the head, half of the body, and close: the client sees a body that ends too early."""
        ...

    def abort(self) -> None:
        """Reset the connection without a byte."""
        ...
