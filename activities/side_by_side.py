"""Two things at once, or a few of many, of which none outlives the others."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

Given = TypeVar("Given")
First = TypeVar("First")
Second = TypeVar("Second")


async def side_by_side(
    first: Coroutine[Any, Any, First], second: Coroutine[Any, Any, Second]
) -> tuple[First, Second]:
    """What both return. Fails one, or is this cancelled, the other is cancelled and waited for.

    Raises what the one that failed first raised.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            one, two = tasks.create_task(first), tasks.create_task(second)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return one.result(), two.result()


async def few_at_once(
    call: Callable[[Given], Awaitable[First]], each: Iterable[Given], *, most: int
) -> list[First]:
    """What `call` returns for each, in their order; `most` of them run at the same time. Fails as above."""
    gate = asyncio.Semaphore(most)

    async def one(given: Given) -> First:
        async with gate:
            return await call(given)

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(given)) for given in each]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [task.result() for task in running]
