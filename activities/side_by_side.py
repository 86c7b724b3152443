"""Two things at once, of which none outlives the other."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

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
