"""Says why a batch waits where one of its steps fails and is tried again."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.slices.waiting import WaitingSignals
from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceRequest
from batchwright.contracts.finalization import FinalizeRequest

_INPUT, _LINES = "its input cannot be prepared now", "its lines cannot be asked now"
_FILES = "its files cannot be written now"
_TOLD = (Failure.STORAGE_UNAVAILABLE, Failure.DATABASE_UNAVAILABLE, Failure.DEFERRED)
_NO_FAILURES = (Failure.CANCEL_ACCEPTED, Failure.TURN_OVER, Failure.OWNERSHIP_LOST)
_UNTOLD = "something nobody expected, which the worker's log has"
_LOOK_SECONDS = 1.0
_HOLDS_SECONDS = 5.0  # while the attempt goes on, it is told again and again
_PAUSE_SECONDS = 60.0  # the longest between two attempts
_WHOLE_BATCH = ""  # the place of the model's name


class WaitTeller(Interceptor):
    """`failing` says what the worker cannot reach; empty: nothing."""

    def __init__(self, waiting: WaitingSignals, failing: Callable[[], str] = str) -> None:
        self._waiting, self._failing = waiting, failing

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return Telling(next, self._waiting, self._failing)


class Telling(ActivityInboundInterceptor):
    """One attempt of one step."""

    def __init__(
        self, next: ActivityInboundInterceptor, waiting: WaitingSignals, failing: Callable[[], str]
    ) -> None:
        super().__init__(next)
        self._waiting, self._failing = waiting, failing
        self._has_told = False

    async def execute_activity(self, input: ExecuteActivityInput) -> object:
        match input.args:
            case [BatchOrder() as order]:
                return await self._of_batch(order, _INPUT, input)
            case [FinalizeRequest(order=order)]:
                return await self._of_batch(order, _FILES, input)
            case [SliceRequest() as request]:
                return await self._of_slice(request, input)
            case _:
                return await super().execute_activity(input)

    async def _of_slice(self, request: SliceRequest, input: ExecuteActivityInput) -> object:
        """Once it goes on it says so by itself, as it does where it is put off."""
        try:
            return await super().execute_activity(input)
        except Exception as error:
            if not _is_put_off(error) and (reason := _reason(error)):
                told = f"{_LINES}: {reason}"
                self._waiting.waits(request.tenant, request.batch_id, request.model, told, _PAUSE_SECONDS)
            raise

    async def _of_batch(self, order: BatchOrder, does: str, input: ExecuteActivityInput) -> object:
        self._order, self._does = order, does
        watching = asyncio.create_task(self._watch())
        try:
            result: object = await super().execute_activity(input)
        except Exception as error:
            if reason := _reason(error):
                self._waits(reason, _PAUSE_SECONDS)
            raise
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        if self._has_told or activity.info().attempt > 1:
            self._goes_on()
        return result

    async def _watch(self) -> None:
        """An attempt that tries again by itself has not failed yet."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if failing := self._failing():
                self._waits(failing, _HOLDS_SECONDS)
            elif self._has_told:
                self._goes_on()

    def _waits(self, reason: str, seconds: float) -> None:
        self._has_told = True
        told = f"{self._does}: {reason}"
        self._waiting.waits(self._order.tenant, self._order.batch_id, _WHOLE_BATCH, told, seconds)

    def _goes_on(self) -> None:
        self._has_told = False
        self._waiting.moves(self._order.tenant, self._order.batch_id, _WHOLE_BATCH)


def _reason(error: Exception) -> str:
    """Of an attempt that is followed by another because it failed; else empty."""
    if not isinstance(error, ApplicationError):
        return _UNTOLD
    if error.non_retryable or error.type in _NO_FAILURES:
        return ""
    return error.message.removesuffix(".") if error.type in _TOLD else _UNTOLD


def _is_put_off(error: Exception) -> bool:
    return isinstance(error, ApplicationError) and error.type == Failure.DEFERRED
