"""Limit the signals that only inform the workflow of a batch, such as waiting reasons.

Each signal adds one to four events to the history of the workflow. Temporal ends a workflow with more than
51,200 events. After 10,000 signals, Temporal accepts no further signals for the workflow. Then the batch
could no longer be cancelled.

`SignalBudget` limits the signals that one process sends. `history_has_room` limits the signals of all
processes together, because it reads the number of events in the history from Temporal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import WorkflowHandle

from batchwright.contracts.search_attributes import DEADLINE

_BURST = 20  # signals to a batch without a pause; the Web UI shows as many models
_SHORTEST_PAUSE_SECONDS = 60.0
_PAUSES = (
    20  # a pause lasts this fraction of the time since the first signal: 120 signals a day, 180 in two weeks
)
_MAX_BATCHES = 10_000
# Signals are sent while the history has fewer events than the first number, from the start of the batch, and
# than the second number at its deadline. All events count, so these limits also bound the number of signals.
_MAX_EVENTS_AT_START, _MAX_EVENTS_AT_DEADLINE = 1_000, 6_000
# More events for signals that withdraw an earlier one, so that no outdated reason stays.
EVENTS_FOR_WITHDRAWALS = 1_000


@dataclass(slots=True)
class _Spent:
    first_at: float
    last_at: float
    left: float = _BURST  # at the time `last_at`


class SignalBudget:
    """A limit on the signals that this process sends to the workflow of each batch.

    At first, 20 signals may be sent without a pause. After that, the pauses grow with the time since the
    first signal: about 120 signals are possible in a day, and 180 in two weeks.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent: dict[str, _Spent] = {}

    def take(self, batch_id: str) -> bool:
        """Return True if a signal may be sent to the batch's workflow now, otherwise False.

        If the result is True, the signal is counted.
        """
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


async def history_has_room(
    workflow: WorkflowHandle[object, object], more_events: int = 0, *, rpc_timeout: timedelta | None = None
) -> bool:
    """Return True if a batch's workflow may get another signal that only informs, such as a waiting reason.

    The history of the workflow must have fewer events than `max_events` plus `more_events`.

    Args:
        more_events: number of additional events that are allowed, such as `EVENTS_FOR_WITHDRAWALS` for a
            signal that withdraws a waiting reason.
        rpc_timeout: maximum time to wait for Temporal's response; None for the client's default.

    Raises:
        RPCError: Temporal does not respond, or there is no such workflow.
    """
    run = await workflow.describe(rpc_timeout=rpc_timeout)
    deadline = run.typed_search_attributes.get(DEADLINE)
    return run.history_length < max_events(run.start_time, deadline, datetime.now(UTC)) + more_events


def max_events(started_at: datetime, deadline: datetime | None, at: datetime) -> float:
    """Return the number of events up to which a workflow gets signals that only inform.

    If its history has as many events or more, the workflow gets only the signals that it needs, such as a
    cancel. The number grows linearly, from `_MAX_EVENTS_AT_START` at the start of the workflow to
    `_MAX_EVENTS_AT_DEADLINE` at its deadline. If the deadline is not known, the number does not grow.

    Args:
        at: the current time.
    """
    if deadline is None:
        return _MAX_EVENTS_AT_START
    window = max(deadline - started_at, timedelta(seconds=1))
    elapsed = min(max((at - started_at) / window, 0.0), 1.0)
    return _MAX_EVENTS_AT_START + elapsed * (_MAX_EVENTS_AT_DEADLINE - _MAX_EVENTS_AT_START)
