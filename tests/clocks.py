"""Helper for tests of timers."""

import asyncio


def skip_time(seconds: float) -> None:
    """Move the clock of the running event loop forward by `seconds`, so that timers fire as if the time
    had passed.
    """
    loop = asyncio.get_running_loop()
    before = loop.time
    setattr(loop, "time", lambda: before() + seconds)  # noqa: B010 - a method, for this loop only
