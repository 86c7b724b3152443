"""Limits concurrent expensive tasks in this process. A tenant gets at most half of the slots (places for one
running task each), but at least one.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

from batchwright.api.errors import rate_limited


class _Waiter(NamedTuple):
    tenant: str
    task: str
    granted: asyncio.Future[None]


class ExpensiveTaskLimiter:
    """A limiter of expensive tasks in this process.

    It has three rules:

    - At most `max_tasks` tasks run at a time.
    - One tenant runs at most `max(max_tasks // 2, 1)` tasks at a time.
    - A tenant never runs two tasks for the same object at the same time.

    Callers wait in the order of their calls. If a caller waits because of the second or third rule, later
    callers may run first.

    Args:
        seconds: maximum time that a caller waits.
        work: description of the running tasks in error messages.
    """

    def __init__(self, max_tasks: int, seconds: float, work: str = "uploads are being completed") -> None:
        self._work = work
        self._max_tasks, self._max_per_tenant, self._seconds = max_tasks, max(max_tasks // 2, 1), seconds
        self._held: Counter[str] = Counter()
        self._active = set[tuple[str, str]]()  # tenant and task
        self._queue: list[_Waiter] = []

    @asynccontextmanager
    async def slot(self, tenant: str, task: str) -> AsyncGenerator[bool]:
        """Context manager that waits for a free slot (a place for one running task), and occupies the slot
        until the end of the `with` block.

        It yields True if the caller had to wait. In this case, another caller may have done the same work
        meanwhile, so the caller should check this.

        Args:
            tenant: tenant of the caller.
            task: id of the object to work on.

        Raises:
            ApiError: no slot became free in time (429).
        """
        waited = not self._try_acquire(tenant, task)
        if waited:
            await self._wait(tenant, task)
        try:
            yield waited
        finally:
            self._release(tenant, task)

    def _try_acquire(self, tenant: str, task: str) -> bool:
        held = self._held[tenant]
        if (
            len(self._active) >= self._max_tasks
            or held >= self._max_per_tenant
            or (tenant, task) in self._active
        ):
            return False
        self._held[tenant] += 1
        self._active.add((tenant, task))
        return True

    async def _wait(self, tenant: str, task: str) -> None:
        waiter = _Waiter(tenant, task, asyncio.get_running_loop().create_future())
        self._queue.append(waiter)
        try:
            async with asyncio.timeout(self._seconds):
                await waiter.granted
        except TimeoutError:
            self._cancel(waiter)
            message = (
                f"Too many {self._work}: none of {self._max_tasks} places was free within "
                f"{self._seconds:g} s. Try again."
            )
            raise rate_limited(message, self._max_tasks) from None
        except asyncio.CancelledError:
            self._cancel(waiter)
            raise

    def _cancel(self, waiter: _Waiter) -> None:
        if waiter in self._queue:
            self._queue.remove(waiter)
        else:  # a slot was granted at the last moment
            self._release(waiter.tenant, waiter.task)

    def _release(self, tenant: str, task: str) -> None:
        self._active.discard((tenant, task))
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        for waiter in list(self._queue):
            if not waiter.granted.done() and self._try_acquire(waiter.tenant, waiter.task):
                self._queue.remove(waiter)
                waiter.granted.set_result(None)
