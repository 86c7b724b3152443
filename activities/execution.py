"""The execution phase: the turns of a slice."""

import asyncio
from collections import Counter

from temporalio import activity

from activities.slices.attempt import SliceAttempt
from activities.slices.moving import moved
from activities.slices.refusal import check_needs
from activities.slices.tools import Tools
from batchwright.contracts.execution import ExecutionActivities, SliceRequest, SliceResult


class Execution(ExecutionActivities):
    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self.running: Counter[tuple[str, str]] = Counter()  # slices, by batch and model

    @activity.defn
    async def run_slice(self, request: SliceRequest) -> SliceResult:
        """Send what the slice has not settled yet, for one turn.

        Returns the slice's counts when every line is settled, and also when it was cancelled or its window
        closed, then with `finished` false. A line is settled once its record lies in a stored segment; those
        are never asked again, whatever is killed.
        `goes_on_at` names another task queue where the slice belongs since the rates have changed.

        Raises:
            TurnOver, Deferred: benign; Temporal starts the next turn, and the slot is free meanwhile.
            OwnershipLost: another attempt has the slice.
            StorageUnavailable: retried. PlanDamaged, ResultsDamaged: never retried.
        """
        check_needs(self._tools, request)
        if queue := await moved(self._tools.rates, request):
            return SliceResult(goes_on_at=queue)
        place = request.batch_id, request.model
        self.running[place] += 1
        try:
            return await _turn(SliceAttempt(self._tools, request))
        finally:
            self.running[place] -= 1
            if not self.running[place]:
                del self.running[place]


async def _turn(attempt: SliceAttempt) -> SliceResult:
    """In a task of its own; a cancel is told to the attempt, which then ends by itself."""
    running = asyncio.create_task(attempt.run())
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            attempt.cancelled()
    return running.result()
