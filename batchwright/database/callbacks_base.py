"""What is asked of the table of calls by which backends tell of jobs."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import NamedTuple, Protocol


class Told(NamedTuple):
    """`body` is None where it was too large to be kept; `size` in bytes is that of what was sent."""

    id: str
    size: int
    body: bytes | None


class CallbacksTable(Protocol):
    """The first call of an id counts. All methods raise DatabaseUnavailable."""

    async def accept(self, id: str, body: bytes | None, size: int, expires_at: datetime) -> bool:
        """Whether it was the first; of a second one nothing is kept."""
        ...

    async def told(self, ids: Sequence[str]) -> list[Told]:
        """Those of `ids` that were called."""
        ...

    def listening(self, heard: Callable[[str], None]) -> AbstractAsyncContextManager[asyncio.Event]:
        """Inside of it `heard` gets the id of each call that is accepted, by any process, and every word.

        The event is set when the connection is lost: nothing is heard any more.
        """
        ...

    async def ring(self, word: str) -> None:
        """Tells all who listen."""
        ...

    async def empty(self, ids: Sequence[str]) -> None:
        """Their bodies are not needed any more; that they were called is remembered."""
        ...

    async def forget(self, before: datetime) -> None:
        """Deletes what expired before then."""
        ...
