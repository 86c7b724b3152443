"""Whether what backends tell is heard as it comes: one connection that listens, and proof that it hears."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from batchwright.database.callbacks_base import CallbacksTable
from batchwright.database.errors import DatabaseUnavailable

logger = logging.getLogger(__name__)
_OWN = "word:"  # no id of a call begins so
_UNHEARD = (
    "a word sent to the channel did not come back: a pooler in transaction mode stands between; "
    "lead BATCHWRIGHT_DATABASE_URL around it, or pool by session"
)


@dataclass(frozen=True)
class Pace:
    """Seconds."""

    listening: float = 15.0  # between two looks at all jobs, and two proofs that calls are heard
    deaf: float = 1.0  # between two looks while they are not
    together: float = 0.1  # what is told within it is read by one query
    proof: float = 5.0  # for a word to come back
    again: float = 1.0  # before a connection that was lost is made again
    elsewhere: float = 60.0  # before a new one is tried where nothing was heard on the last


class Pushes:
    """One a process. `heard` gets the id of each call; `turned` is told when `is_heard` has changed."""

    def __init__(
        self,
        table: CallbacksTable,
        pace: Pace,
        *,
        heard: Callable[[str], None],
        turned: Callable[[], None],
    ) -> None:
        self._table, self._pace = table, pace
        self._heard, self._turned = heard, turned
        self._word, self._echoed = "", asyncio.Event()
        self._is_told = False  # that nothing is heard
        self.is_heard = False

    async def run(self) -> None:
        """Listens for ever; a connection that is lost is made again."""
        while True:
            reason, wait = "the connection was lost", self._pace.again
            try:
                async with self._table.listening(self._hear) as lost:
                    if not await self._while_heard(lost):
                        reason, wait = _UNHEARD, self._pace.elsewhere
            except DatabaseUnavailable as error:
                reason = str(error)
            self._turn(False, reason)
            await asyncio.sleep(wait)

    async def _while_heard(self, lost: asyncio.Event) -> bool:
        """Until the connection ends or is silent. False: nothing was heard on it at all."""
        was_heard = False
        while not lost.is_set():
            if not await self._comes_back():
                return was_heard or lost.is_set()
            was_heard = True
            self._turn(True)
            await within(lost, self._pace.listening)
        return True

    async def _comes_back(self) -> bool:
        """Sent through the pool: what comes back came over the channel."""
        self._word = _OWN + uuid4().hex
        self._echoed.clear()
        await self._table.ring(self._word)
        return await within(self._echoed, self._pace.proof)

    def _hear(self, word: str) -> None:
        if word == self._word:
            self._echoed.set()
        elif not word.startswith(_OWN):
            self._heard(word)

    def _turn(self, is_heard: bool, reason: str = "") -> None:
        if not is_heard and not self._is_told:
            said = {"reason": reason, "every_seconds": self._pace.deaf}
            logger.warning("calls of backends are not heard as they come, and looked for", extra=said)
        self._is_told = not is_heard
        if self.is_heard is not is_heard:
            self.is_heard = is_heard
            self._turned()


async def within(event: asyncio.Event, seconds: float) -> bool:
    """Whether it is set by then."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
