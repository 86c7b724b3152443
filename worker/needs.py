"""What a worker cannot do without: while some of it is away, no slices are taken."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from batchwright.database.errors import DatabaseError
from batchwright.storage.base import StorageError
from batchwright.temporal import TemporalUnavailable

logger = logging.getLogger(__name__)
Check = Callable[[], Awaitable[None]]
OK = "ok"
_PATIENCE_SECONDS = 5.0
_EVERY_SECONDS = 5.0
# One failure may be a hiccup; a slice whose results cannot be stored holds on to them and tries again itself.
_FAILURES = 2


class Needs:
    """`checks` by name; `vital` names those without which slices are not taken."""

    def __init__(
        self, checks: Mapping[str, Check], *, vital: frozenset[str], every_seconds: float = _EVERY_SECONDS
    ) -> None:
        self._checks, self._vital, self._every = checks, vital, every_seconds
        self._failures = 0
        self.failing = ""  # names and sentences, as of the last look
        self.missing = ""  # the same; empty while slices are taken

    async def look(self) -> dict[str, str]:
        """The state of each, asked now: `ok`, or what is wrong in a sentence."""
        found = await asyncio.gather(*(_state(check) for check in self._checks.values()))
        return dict(zip(self._checks, found, strict=True))

    async def run(self) -> None:
        """Looks for ever."""
        while True:
            states = await self.look()
            self._judge({name: states[name] for name in sorted(self._vital) if states[name] != OK})
            await asyncio.sleep(self._every)

    def _judge(self, missing: Mapping[str, str]) -> None:
        self._failures = self._failures + 1 if missing else 0
        self.failing = "; ".join(f"{name}: {state}" for name, state in missing.items())
        if self._failures >= _FAILURES:
            if not self.missing:
                logger.error("slices are no longer taken: what they need is away", extra={"missing": missing})
            self.missing = self.failing
        elif self.missing and not missing:
            self.missing = ""
            logger.info("slices are taken again")


async def _state(check: Check) -> str:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await check()
    except (DatabaseError, StorageError, TemporalUnavailable, TimeoutError) as error:
        return str(error) or f"no answer within {_PATIENCE_SECONDS:g} s"
    return OK
