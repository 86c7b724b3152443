"""Repeats operations on a storage over the network: the only retries between an activity and the server."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_before_delay,
    wait_random_exponential,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.2, 5.0
_ATTEMPT_SECONDS = 60.0  # a part of 8 MiB at 140 KB/s


class Operation(StrEnum):
    STORE = "store"
    RETRIEVE = "retrieve"
    DELETE = "delete"
    LIST = "list"


class Retries:
    """Waits are random up to a bound that doubles, so that throttled processes do not return together.

    No attempt begins later than `patience_seconds` after the first, and none takes longer than a minute.
    `passing` says which errors another attempt may be without; `noted` hears of every repetition.
    """

    def __init__(
        self,
        patience_seconds: float,
        passing: Callable[[BaseException], bool],
        noted: Callable[[Operation], None],
    ) -> None:
        self._patience = patience_seconds
        self._passing = passing
        self._noted = noted

    def none(self) -> "Retries":
        """One attempt."""
        return Retries(0, self._passing, self._noted)

    async def run(self, operation: Operation, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` returns, or its last error. It must do no harm when it is called again."""

        async def bounded() -> T:
            async with asyncio.timeout(_ATTEMPT_SECONDS):
                return await attempt()

        def note(state: RetryCallState) -> None:
            self._noted(operation)
            error = state.outcome.exception() if state.outcome else None
            logger.warning(
                "a storage operation is tried again", extra={"operation": operation, "error": str(error)}
            )

        return await AsyncRetrying(
            retry=retry_if_exception(self._passing),
            wait=wait_random_exponential(multiplier=_FIRST_WAIT_SECONDS, max=_LONGEST_WAIT_SECONDS),
            stop=stop_before_delay(self._patience),
            before_sleep=note,
            reraise=True,
        )(bounded)
