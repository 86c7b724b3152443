"""A step that may be given up: wait for it, or cancel it and go on."""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow

T = TypeVar("T")


async def finish_unless(
    step: workflow.ActivityHandle[T], given_up: Callable[[], bool], patience: timedelta
) -> T | None:
    """The step's result; None once `given_up()`, after at most `patience` for it to end.

    A step that had its result nevertheless returns it: what it did is done.

    Raises:
        ActivityError: it failed by itself.
    """
    await workflow.wait_condition(lambda: step.done() or given_up())
    if not step.done():
        step.cancel()
        await _ended(step, patience)
        return step.result() if _succeeded(step) else None
    return await step


async def _ended(step: workflow.ActivityHandle[T], patience: timedelta) -> None:
    try:
        await workflow.wait_condition(
            step.done, timeout=patience, timeout_summary="end of the cancelled step"
        )
    except TimeoutError:
        workflow.logger.warning("a cancelled activity did not end in time; going on without it")


def _succeeded(step: workflow.ActivityHandle[T]) -> bool:
    return step.done() and not step.cancelled() and step.exception() is None
