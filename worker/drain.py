"""SIGTERM and SIGINT: the first asks for a drain, the second ends the process at once."""

import asyncio
import logging
import os
import signal

logger = logging.getLogger(__name__)
FORCED_EXIT = 130


class StopSignal:
    """`wait` returns at the first signal; `request` is the same by word."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)

    @property
    def is_requested(self) -> bool:
        return self._event.is_set()

    def request(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()

    def _signalled(self) -> None:
        if self._event.is_set():
            logger.warning("stopped by a second signal; slices go on elsewhere after their heartbeat timeout")
            os._exit(FORCED_EXIT)
        logger.info("draining")
        self._event.set()
