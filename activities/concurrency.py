"""Run several coroutines at the same time, and end all of them before the call returns."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

Item = TypeVar("Item")
First = TypeVar("First")
Second = TypeVar("Second")


async def run_both(
    first: Coroutine[Any, Any, First], second: Coroutine[Any, Any, Second]
) -> tuple[First, Second]:
    """Run two coroutines at the same time and return both results.

    If one of them fails, the other is cancelled and awaited. Then the first error is raised.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            one, two = tasks.create_task(first), tasks.create_task(second)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group.exceptions[0].__cause__
    return one.result(), two.result()


async def map_concurrently(
    call: Callable[[Item], Awaitable[First]], items: Iterable[Item], *, at_once: int
) -> list[First]:
    """Call `call` for each item and return the results in the order of the items.

    If a call fails, the other calls are cancelled and awaited. Then the error of the first failed call is
    raised.

    Args:
        at_once: maximum number of calls that run at the same time.
    """
    semaphore = asyncio.Semaphore(at_once)

    async def one(item: Item) -> First:
        async with semaphore:
            return await call(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(item)) for item in items]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group.exceptions[0].__cause__
    return [task.result() for task in running]
