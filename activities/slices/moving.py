"""Slices move to another task queue when the rates come to be shared out otherwise."""

from temporalio import activity

from activities.slices.ends import next_turn
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
        message = f"slice {request.number + 1} moves to {queue!r} unless the rates change again"
        raise next_turn(Failure.TURN_OVER, message, min(2.0 ** min(request.moves, 10), _LONGEST_SECONDS))
    return queue
