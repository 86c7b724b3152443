"""Handle SIGTERM and SIGINT.

At the first signal, the process drains: it finishes or returns its current work, and ends. A second signal
ends the process at once.
"""

import asyncio
import logging
import os
import signal

logger = logging.getLogger(__name__)
FORCED_EXIT_CODE = 130


class ShutdownSignal:
    """An event that is set by the first SIGTERM or SIGINT, or by `request`. The process then stops.

    Any later signal ends the process at once.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def install(self) -> None:
        """Install the signal handlers of the process. Call this in the running event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    @property
    def is_requested(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()

    def _on_signal(self) -> None:
        if self._event.is_set():
            logger.warning(
                "forced exit on a second signal; others take over the slices after the heartbeat timeout"
            )
            os._exit(FORCED_EXIT_CODE)
        logger.info("draining")
        self._event.set()
