"""States of a batch: which states are live, which state a client sees, and the effect of a cancel request."""

from datetime import datetime, timedelta
from enum import Enum

from batchwright.contracts.terms import BatchStatus

_CANCEL_PRECEDENCE = timedelta(minutes=10)

# `cancelling` is never stored: it is a live state plus a cancel request.
LIVE_STATES = frozenset({BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING})


class CancelEffect(Enum):
    """The effect of a cancel request on a batch."""

    STOPS = "stops"  # the batch's workflow has to be signalled
    NOTHING = "nothing"  # the batch is already cancelling or cancelled, and is returned unchanged
    REFUSED = "refused"  # the batch ended in another state


def visible_status(stored: BatchStatus, *, cancel_requested: bool) -> BatchStatus:
    """Return the status that clients see.

    It is `cancelling` for a live batch with a cancel request, and `stored` for all other batches.
    """
    return BatchStatus.CANCELLING if cancel_requested and stored in LIVE_STATES else stored


def cancel_effect(shown: BatchStatus) -> CancelEffect:
    if shown in LIVE_STATES:
        return CancelEffect.STOPS
    return (
        CancelEffect.NOTHING
        if shown in (BatchStatus.CANCELLING, BatchStatus.CANCELLED)
        else CancelEffect.REFUSED
    )


def cancel_takes_precedence(end: BatchStatus, cancel_requested_at: datetime | None, at: datetime) -> bool:
    """Return True if a batch must end as cancelled instead of completed, because of a cancel request.

    Only a request of the last ten minutes counts. Normally the batch's workflow handles the request much
    earlier. If the request is older, the workflow has probably lost it, for example because Temporal was
    restored from a backup.

    Args:
        end: status with which the batch would end. The result is False if this status is not `completed`.
        cancel_requested_at: time of the cancel request; None if there was none.
        at: the current time.
    """
    if end is not BatchStatus.COMPLETED or cancel_requested_at is None:
        return False
    return at - cancel_requested_at < _CANCEL_PRECEDENCE
