"""Limit of how often a batch may be paused and resumed, and the order of changes at the same time.

Each pause or resume is a signal to the batch's workflow. Temporal ends a workflow after 51,200 events, and
accepts at most 10,000 signals. Without a limit, a tenant could end its own batch.
"""

import math
from datetime import datetime, timedelta

from batchwright.contracts.temporal_payloads.batch import BatchOrder

FREE_CHANGES = 20  # allowed right after a batch was created
_OVERTAKEN_WITHIN = timedelta(minutes=1)  # signals farther apart arrive in the order of their numbers
_CHANGES_OF_A_LIFE = 1_000  # further ones until the batch must have ended, evenly spread


def allowed_changes(order: BatchOrder, at: datetime) -> int:
    """Return how many pauses and resumes of a batch, counted together, are allowed until the time `at`."""
    return FREE_CHANGES + max((at - order.created_at) // change_interval(order), 0)


def seconds_to_next_change(order: BatchOrder, at: datetime) -> int:
    """Return the seconds from the time `at` until one more pause or resume is allowed, rounded up."""
    interval = change_interval(order)
    return math.ceil((interval - (at - order.created_at) % interval).total_seconds())


def change_interval(order: BatchOrder) -> timedelta:
    """Return how long it takes until one more pause or resume of the batch becomes allowed.

    The longer the batch may run, the longer the interval.
    """
    longest = order.deadline - order.created_at + timedelta(seconds=order.policy.finalize_patience_seconds)
    return max(longest / _CHANGES_OF_A_LIFE, timedelta(seconds=1))


def is_overtaken(change: int, last: int, since: timedelta) -> bool:
    """Return True if a pause or resume has no effect, because a later one has arrived before it.

    A database that was restored from a backup counts from a lower number again. So a lower number alone is
    not enough: both must have arrived at about the same time.

    Args:
        change: number of the pause or resume; 0 if it has no number.
        last: number of the last one that had an effect.
        since: time since that one.
    """
    return 0 < change < last and since < _OVERTAKEN_WITHIN
