"""Retries of storage operations that use the network."""

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

_MIN_WAIT_SECONDS, _MAX_WAIT_SECONDS = 0.2, 5.0
_ATTEMPT_SECONDS = 60.0  # enough for a part of 8 MiB at 140 KB/s


class StorageOperation(StrEnum):
    STORE = "store"
    RETRIEVE = "retrieve"
    DELETE = "delete"
    LIST = "list"


class OperationRetries:
    """A runner of storage operations. It retries them after transient errors.

    The wait before a retry is random. The upper limit of the wait doubles with each retry, up to 5 s.

    Args:
        patience_seconds: time after the start of the first attempt within which a retry must start.
        is_transient: returns True for an error that may be retried.
        on_retry: called for each retry.
    """

    def __init__(
        self,
        patience_seconds: float,
        is_transient: Callable[[BaseException], bool],
        on_retry: Callable[[StorageOperation], None],
    ) -> None:
        self._patience = patience_seconds
        self._is_transient = is_transient
        self._on_retry = on_retry

    def without_retries(self) -> "OperationRetries":
        """Return a copy that runs each operation only once."""
        return OperationRetries(0, self._is_transient, self._on_retry)

    async def run(self, operation: StorageOperation, attempt: Callable[[], Awaitable[T]]) -> T:
        """Call `attempt` until it succeeds, and return its result.

        After a transient error, wait and call `attempt` again. If this call would start more than
        `patience_seconds` after the first call, raise the error instead. Raise any other error at once.

        Args:
            operation: kind of the storage operation, for metrics and logs.
            attempt: runs the operation once. It must be safe to call this function several times. If a call
                takes longer than 60 s, it is cancelled with a TimeoutError.
        """

        async def bounded() -> T:
            async with asyncio.timeout(_ATTEMPT_SECONDS):
                return await attempt()

        def on_sleep(state: RetryCallState) -> None:
            self._on_retry(operation)
            error = state.outcome.exception() if state.outcome else None
            logger.warning(
                "storage operation is retried", extra={"operation": operation, "error": str(error)}
            )

        return await AsyncRetrying(
            retry=retry_if_exception(self._is_transient),
            wait=wait_random_exponential(multiplier=_MIN_WAIT_SECONDS, max=_MAX_WAIT_SECONDS),
            stop=stop_before_delay(self._patience),
            before_sleep=on_sleep,
            reraise=True,
        )(bounded)
