"""Helper for tests of timers."""

import asyncio


def skip_time(seconds: float) -> None:
    """Move the running event loop's clock forward by `seconds`, so that its timers fire."""
    loop = asyncio.get_running_loop()
    before = loop.time
    setattr(loop, "time", lambda: before() + seconds)  # noqa: B010 - a method, for this loop only
