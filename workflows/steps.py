"""Wait for an activity of a batch, and cancel it if the batch no longer needs it."""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow

T = TypeVar("T")
# How long a cancelled ingestion or finalization may take to end.
_CANCEL_TIMEOUT = timedelta(seconds=10)


async def run_until(step: workflow.ActivityHandle[T], stopped: Callable[[], bool]) -> T | None:
    """Wait for an activity and return its result, or cancel it if the batch no longer needs it.

    If `stopped()` becomes True before the activity has ended, cancel the activity, and wait at most 10 s for
    its end. If the activity succeeds nevertheless, return its result. If it does not, return None.

    Args:
        step: a running activity.
        stopped: returns True when the activity must be cancelled. It is called after every workflow event.

    Raises:
        ActivityError: the activity failed without being cancelled.
    """
    await workflow.wait_condition(lambda: step.done() or stopped())
    if not step.done():
        step.cancel()
        await _wait_for_end(step)
        succeeded = step.done() and not step.cancelled() and step.exception() is None
        return step.result() if succeeded else None
    return await step


async def _wait_for_end(step: workflow.ActivityHandle[T]) -> None:
    try:
        await workflow.wait_condition(
            step.done, timeout=_CANCEL_TIMEOUT, timeout_summary="end of the cancelled step"
        )
    except TimeoutError:
        workflow.logger.warning("cancelled activity did not end in time")
