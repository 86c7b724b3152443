"""Limit how often a batch may be paused and resumed, and ignore a pause or resume that arrives too late.

Each pause or resume is a signal to the batch's workflow. Temporal ends a workflow after 51,200 events, and
accepts at most 10,000 signals. Without a limit, a tenant could end its own batch.
"""

import math
from datetime import datetime, timedelta

from batchwright.contracts.temporal_payloads.batch import BatchOrder

FREE_CHANGES = 20  # allowed right after a batch was created
_OVERTAKEN_WITHIN = timedelta(minutes=1)  # signals farther apart arrive in the order of their numbers
_CHANGES_OF_A_LIFE = 1_000  # further ones until the batch must have ended, evenly spread


def allowed_pause_changes(order: BatchOrder, at: datetime) -> int:
    """Return how many pauses and resumes of a batch are allowed from its creation until the time `at`.

    Pauses and resumes are counted together. `order` describes the batch.
    """
    return FREE_CHANGES + max((at - order.created_at) // change_interval(order), 0)


def seconds_to_next_pause_change(order: BatchOrder, at: datetime) -> int:
    """Return the seconds, rounded up, from the time `at` until one more pause or resume is allowed.

    `order` describes the batch.
    """
    interval = change_interval(order)
    return math.ceil((interval - (at - order.created_at) % interval).total_seconds())


def change_interval(order: BatchOrder) -> timedelta:
    """Return the time that must pass until one more pause or resume of the batch is allowed.

    The longer the batch may run, the longer this time. It is at least 1 second.
    """
    longest = order.deadline - order.created_at + timedelta(seconds=order.policy.finalize_patience_seconds)
    return max(longest / _CHANGES_OF_A_LIFE, timedelta(seconds=1))


def is_overtaken(change: int, last: int, since: timedelta) -> bool:
    """Return True if a pause or resume must be ignored, because a newer one has already had an effect.

    Each new pause or resume of a batch gets a higher number. But after the database is restored from a
    backup, a new number can be lower than an old number. Therefore a pause or resume with a lower number
    counts as older only if `since` is below one minute.

    Args:
        change: number of the pause or resume. If there is no number, `change` is 0 and the result is False.
        last: number of the last pause or resume that had an effect.
        since: time since the last pause or resume that had an effect.
    """
    return 0 < change < last and since < _OVERTAKEN_WITHIN
