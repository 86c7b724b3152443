"""Limit how many signals a process sends to the workflow of each batch.

Each signal adds about four events to the history of the workflow. Temporal ends a workflow with more than
51,200 events. After 10,000 signals, it accepts no further ones, so the batch could no longer be cancelled.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

_BURST = 20  # signals to a batch without a pause; the Web UI shows as many models
_SHORTEST_PAUSE_SECONDS = 60.0
_PAUSES = (
    20  # a pause lasts this fraction of the time since the first signal: 120 signals a day, 180 in two weeks
)
_MAX_BATCHES = 10_000


@dataclass(slots=True)
class _Spent:
    first_at: float
    last_at: float
    left: float = _BURST  # at the time `last_at`


class SignalBudget:
    """Number of signals that this process may still send to each batch's workflow.

    At first, 20 signals may be sent without a pause. After that, the pauses grow with the time since the
    first signal, so that their number stays small even in a window of two weeks.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent: dict[str, _Spent] = {}

    def take(self, batch_id: str) -> bool:
        """Count a signal to the batch and return True. Return False if none may be sent now."""
        now = self._clock()
        spent = self._spent.get(batch_id)
        if spent is None:
            if len(self._spent) >= _MAX_BATCHES:
                del self._spent[next(iter(self._spent))]
            spent = self._spent[batch_id] = _Spent(now, now)
        pause = max(_SHORTEST_PAUSE_SECONDS, (now - spent.first_at) / _PAUSES)
        left = min(_BURST, spent.left + (now - spent.last_at) / pause)
        if left < 1:
            return False
        spent.left, spent.last_at = left - 1, now
        return True
