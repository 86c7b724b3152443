"""Runs background tasks that report failed calls (requests of clients) to the circuit breakers of their
backends.

Before its report, a task sends the backend a probe: a small test request.
"""

import asyncio
from collections.abc import Coroutine

from batchwright.background import log_failure

# More failures show nothing more about a backend. Clients do not wait for reports, so nothing else limits
# their number while a probe gets no answer.
MAX_REPORTS = 1_000


class ReportTasks:
    """The background tasks of this process that report failed calls to circuit breakers. One task reports one
    call.

    If a task raises an exception, the exception is logged.
    """

    def __init__(self) -> None:
        self._running = set[asyncio.Task[None]]()

    @property
    def is_full(self) -> bool:
        """True if the maximum number of tasks is running, so that no other task may start now."""
        return len(self._running) >= MAX_REPORTS

    def start(self, report: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(report, name="interactive_report")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(log_failure)
        return task

    async def ended(self) -> None:
        """Wait until all background tasks that report failed calls have ended."""
        while self._running:
            await asyncio.wait(self._running)

    async def stop(self) -> None:
        """Cancel all background tasks that report failed calls, and wait until they have ended. Call this
        when the process stops.
        """
        for task in self._running:
            task.cancel()
        await self.ended()
