"""Pool of reusable asyncio tasks.

Creating a new task for each request would take a large part of the time that sending a request takes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Generic, NoReturn, TypeVar

Item = TypeVar("Item")
# After so many items, a task yields to the event loop, because items that await nothing would block it.
_ITEMS_BEFORE_YIELD = 16


class _PooledTask(Generic[Item]):
    """A reusable task of the pool, and the next item that it will execute."""

    __slots__ = ("_waiting", "item")

    def __init__(self, item: Item) -> None:
        self.item: Item | None = item
        self._waiting: asyncio.Future[Item] | None = None

    def assign(self, item: Item) -> None:
        if self._waiting is None:
            self.item = item
        else:
            self._waiting.set_result(item)
            self._waiting = None

    async def next(self) -> Item:
        self._waiting = asyncio.get_running_loop().create_future()
        return await self._waiting


class TaskPool(Generic[Item]):
    """Runs items in asyncio tasks that are reused, because creating a task for each item is slow.

    A new task is created only while all others are busy. All tasks run in the context (contextvars) in which
    the pool was created.

    Args:
        execute: processes one item. It must not raise anything except CancelledError.
        complete: called once for each item after `execute`, even if the item was cancelled.
    """

    def __init__(self, execute: Callable[[Item], Awaitable[None]], complete: Callable[[Item], None]) -> None:
        self._execute, self._complete = execute, complete
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[_PooledTask[Item]] = []
        self._open: set[Item] = set()

    def submit(self, item: Item) -> None:
        """Execute the item in a task of the pool. The task starts at the next cycle of the event loop."""
        self._open.add(item)
        if self._idle:
            self._idle.pop().assign(item)
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._work(_PooledTask(item)), context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel_all(self) -> None:
        """Cancel all items and wait until their tasks have ended. Do not call `submit` afterwards.

        The pool also drops its references to `execute` and `complete`. They usually refer to the owner of the
        pool, and the owner refers to the pool. Such a cycle would stay in memory until the next garbage
        collection.
        """
        self._idle.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for item in list(self._open):  # not finished yet if its task was cancelled before the first step
            self._finish(item)
        self._execute = self._complete = _closed

    async def _work(self, pooled: _PooledTask[Item]) -> None:
        executed = 0
        while True:
            item = pooled.item or await pooled.next()
            pooled.item = None
            try:
                await self._execute(item)
            except BaseException:
                self._finish(item)
                raise
            self._idle.append(pooled)  # before `_finish`, which may submit the next item to this task
            self._finish(item)
            executed += 1
            if executed % _ITEMS_BEFORE_YIELD == 0:
                await asyncio.sleep(0)

    def _finish(self, item: Item) -> None:
        self._open.discard(item)
        self._complete(item)


def _closed(_item: object) -> NoReturn:
    raise AssertionError("the task pool is closed")
