"""Starts a part again whenever it ends."""

import asyncio
import time
from collections.abc import Callable
from typing import Never

from starter.stack.errors import StackError
from starter.stack.part import Kept, last_lines

Say = Callable[[str], None]
_STEADY_SECONDS = 10.0
_LOOPING = 3
_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 10.0


class Keeper:
    """A first death is made good at once; a part that dies again and again is tried ever less often."""

    def __init__(self, part: Kept, say: Say) -> None:
        self._part = part
        self._say = say
        self._failures = 0

    async def keep(self) -> Never:
        while True:
            since = time.monotonic()
            how = await self._part.ended()
            if time.monotonic() - since > _STEADY_SECONDS:
                self._failures = 0
            self._say(f"{self._part.name} (pid {self._part.pid}) {how}; starting it again.")
            await self._revive()

    async def _revive(self) -> None:
        while True:
            await asyncio.sleep(self._pause())
            self._failures += 1
            try:
                await self._part.start()
            except StackError as error:
                self._complain(str(error), error.detail)
            else:
                self._say(f"{self._part.name} runs again (pid {self._part.pid}).")
                self._complain("", last_lines(self._part.log))
                return

    def _pause(self) -> float:
        if self._failures == 0:
            return 0
        return min(_FIRST_PAUSE_SECONDS * 2**self._failures, _LONGEST_PAUSE_SECONDS)

    def _complain(self, why: str, detail: str) -> None:
        """Once for each row of failures."""
        if self._failures == _LOOPING:
            self._say(
                f"{self._part.name} keeps ending; it is tried again every {_LONGEST_PAUSE_SECONDS:g} s. "
                f"{why}\nThe last lines of {self._part.log}:\n{detail}"
            )
