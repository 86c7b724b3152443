"""Restarts ended services of the embedded stack with growing delays, and informs the user."""

import asyncio
import time
from collections.abc import Callable
from typing import Never

from batchwright.starter.embedded_stack.errors import StackError
from batchwright.starter.embedded_stack.service_process import ManagedService, log_tail

Say = Callable[[str], None]
_STEADY_SECONDS = 10.0
_REPORTED_FAILURES = 3
_FIRST_BACKOFF_SECONDS = 0.25
_MAX_BACKOFF_SECONDS = 10.0


class RestartLoop:
    """A loop that restarts a service each time it ends.

    The first restart is immediate. The delay before each further restart is longer, up to 10 seconds. If the
    service runs for more than 10 seconds and then ends, the next restart is immediate again.

    Args:
        say: function that shows a message to the user. The loop calls this function when the service ends,
            when the service is running again, and when restarts fail repeatedly.
    """

    def __init__(self, service: ManagedService, say: Say) -> None:
        self._service = service
        self._say = say
        self._failures = 0

    async def run(self) -> Never:
        while True:
            since = time.monotonic()
            how = await self._service.ended()
            if time.monotonic() - since > _STEADY_SECONDS:
                self._failures = 0
            self._say(f"{self._service.name} (pid {self._service.pid}) {how}; restarting it.")
            await self._restart()

    async def _restart(self) -> None:
        while True:
            backoff = min(_FIRST_BACKOFF_SECONDS * 2 ** min(self._failures, 10), _MAX_BACKOFF_SECONDS)
            await asyncio.sleep(backoff if self._failures else 0)
            self._failures += 1
            try:
                await self._service.start()
            except StackError as error:
                self._report_failures(str(error), error.detail)
            else:
                self._say(f"{self._service.name} is running again (pid {self._service.pid}).")
                self._report_failures("", log_tail(self._service.log))
                return

    def _report_failures(self, why: str, detail: str) -> None:
        """If this is the third successive restart, report to the user that the service keeps ending.

        Otherwise, do nothing.

        Args:
            why: error of this restart; empty if the restart succeeded.
            detail: last lines of the service's log.
        """
        if self._failures == _REPORTED_FAILURES:
            self._say(
                f"{self._service.name} keeps ending; the pauses before its restarts grow to "
                f"{_MAX_BACKOFF_SECONDS:g} s. {why}\nThe last lines of {self._service.log}:\n{detail}"
            )
