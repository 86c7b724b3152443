"""Whether there is still time: once the window is over, nothing is prepared for workers any more."""

from datetime import UTC, datetime, timedelta

from batchwright.contracts.batch import BatchOrder

# Beyond the end: by then the run, whose clock is another one, knows that the window is over.
_CLOCKS = timedelta(seconds=1)


class WindowOver(Exception):
    """What was being prepared is of no more use."""


class Window:
    def __init__(self, order: BatchOrder) -> None:
        self._over_at = order.expires_at + _CLOCKS

    @property
    def is_over(self) -> bool:
        return datetime.now(UTC) >= self._over_at
