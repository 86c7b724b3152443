"""Work in the foreground of a terminal: ended by signals, in order."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import TypeVar

_Result = TypeVar("_Result")
# SIGHUP: the terminal was closed.
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def until_signal(
    work: Coroutine[None, None, _Result], *, hurry: Callable[[], None], say: Callable[[str], None]
) -> _Result | None:
    """What `work` returns, or None where a signal ended it. Each further signal calls `hurry`."""
    task = asyncio.ensure_future(work)

    def asked_to_stop() -> None:
        if task.cancelling():
            hurry()
        else:
            say("Stopping what runs, in order; Ctrl-C again to stop it at once.")
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in _STOPPING:
        loop.add_signal_handler(number, asked_to_stop)
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        for number in _STOPPING:
            loop.remove_signal_handler(number)
