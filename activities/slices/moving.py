"""Slices move to another task queue when the rates come to be shared out otherwise."""

from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.slices.pace import Rates
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceRequest

_LONGEST_SECONDS = 30.0


async def moved(rates: Rates, request: SliceRequest) -> str:
    """The queue on which the running slice belongs, if it is not the one it came from; else empty.

    A run whose slices have moved before waits longer with every move: workers with different settings, as
    during a rollout, would send them to and fro.

    Raises:
        TurnOver: benign; the slice asks again after that wait.
    """
    info = activity.info()
    queue = await rates.elsewhere(request.model, info.task_queue)
    if queue and request.moves and info.attempt == 1:
        raise ApplicationError(
            f"slice {request.number + 1} moves to {queue!r} unless the rates change again",
            type=Failure.TURN_OVER,
            category=ApplicationErrorCategory.BENIGN,
            next_retry_delay=timedelta(seconds=min(2.0 ** min(request.moves, 10), _LONGEST_SECONDS)),
        )
    return queue
