"""State of an activity, as operators see it.

It has its own module, because the command line must not wait for the import of Temporal's SDK.
"""

from enum import StrEnum


class ActivityState(StrEnum):
    """State of an activity that has not ended."""

    QUEUED = "queued"  # until a worker takes it
    RUNNING = "running"
    WAITING = "waiting"  # until its next attempt
    STOPPING = "stopping"  # it runs, and its cancellation was requested
    PAUSED = "paused"  # in Temporal, by an operator
