"""A clock that also counts the time while the machine is suspended.

Leases and permissions expire by this clock. A lease is the right of a worker to send the lines of a slice.
"""

import time

# Id of the clock for `time.clock_gettime`. Code that runs for each line reads the clock directly.
SUSPEND_AWARE_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def suspend_aware_clock() -> float:
    """Return the seconds of a monotonic clock that does not stop while the machine is suspended.

    On Linux, `time.monotonic` stops during a suspension, so a worker would not notice the suspension. The
    worker would then send lines that Temporal has meanwhile given to another worker.
    """
    return time.clock_gettime(SUSPEND_AWARE_CLOCK)
