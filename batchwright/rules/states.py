"""A batch's states (S0-37 to S0-40): which are live, what a client sees, what may be cancelled."""

from datetime import datetime, timedelta
from enum import Enum

from batchwright.contracts.openai import BatchStatus

_CANCEL_IS_HEARD = timedelta(minutes=10)

# Stored states only: `cancelling` is a live one that was asked to stop.
LIVE = frozenset({BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING})


class Cancel(Enum):
    """What asking to cancel does in a state."""

    STOPS = "stops"  # the batch has to be told
    NOTHING = "nothing"  # it stops or has stopped already: answered with the batch as it is
    REFUSED = "refused"  # it ended another way


def shown_status(stored: BatchStatus, *, cancel_requested: bool) -> BatchStatus:
    """The status a client sees."""
    return BatchStatus.CANCELLING if cancel_requested and stored in LIVE else stored


def cancel(shown: BatchStatus) -> Cancel:
    if shown in LIVE:
        return Cancel.STOPS
    return Cancel.NOTHING if shown in (BatchStatus.CANCELLING, BatchStatus.CANCELLED) else Cancel.REFUSED


def cancel_comes_first(end: BatchStatus, cancel_requested_at: datetime | None, at: datetime) -> bool:
    """Whether a batch may not complete, for its cancel was accepted: its run has heard of it, and ends it so.

    Not for ever: a run that comes from an older state of Temporal has heard of nothing.
    """
    if end is not BatchStatus.COMPLETED or cancel_requested_at is None:
        return False
    return at - cancel_requested_at < _CANCEL_IS_HEARD
