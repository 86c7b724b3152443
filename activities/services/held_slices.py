"""Slices that a worker holds: which it runs, how many lines they have ready, and how fast responses arrive.

`SliceDemand` decides from this whether the worker takes another slice.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from batchwright.inference.limits.memory_budget import Reservation

_RATE_SECONDS = 2.0  # the response rate is averaged over this time; a clear rise counts at once
_MEASURE_SECONDS = 0.25  # the rate is measured over at least this time
_FIRST_ESTIMATE = 64.0  # assumed lines of a slice, until the first slice is read


@dataclass(eq=False)
class HeldSlice:
    """A slice that this worker runs, as `SliceDemand` sees it.

    Attributes:
        queue: task queue from which the slice came, named by its model, as in `SliceDemand`.
        model: model of the slice's lines.
        ready: returns how many lines the slice could send now; None while its lines are not read yet.
        is_yielding: True if the slice has to end, because another slice waits for its place on the worker or
            for its memory.
        is_surplus: True if the slice must return to its queue, because the worker does not need it: the
            worker was searching for a slice of another tenant or batch, but got this one.
        memory: memory for the slice's lines; None until the slice requests memory.
    """

    queue: str
    model: str
    tenant: str
    batch_id: str
    ready: Callable[[], int] | None = None
    is_yielding: bool = False
    is_surplus: bool = False
    memory: Reservation | None = None

    @property
    def waits_for_memory(self) -> bool:
        return self.memory is not None and not self.memory.granted

    @property
    def holds_memory(self) -> bool:
        return self.memory is not None and self.memory.granted and self.memory.size > 0

    def drain(self) -> None:
        """Record that the slice will send no more lines, and only waits for responses."""
        self.ready = _nothing


def _nothing() -> int:
    return 0


@dataclass(eq=False)
class TaskQueueSlices:
    """Slices that this worker took from one task queue, and its searches for slices of certain tenants and
    batches.

    A worker cannot choose a slice: it always gets the next slice of the queue. In a search, it takes one more
    slice, in the hope that the slice belongs to a tenant or batch that has none on this worker.

    Attributes:
        slots: one object for each taken slice, including slices that have not begun to run and slices whose
            end Temporal has not confirmed yet.
        ended: number of slices that have ended but are still in `slots`.
        lines: average number of unsettled lines of the slices read so far.
        rate: responses per second of the model, as `measure_rate` computes it.
        answered: number of responses until the time `measured_at`.
        sought: for each tenant, the time of the last search for one of the tenant's slices.
        sought_batches: for each batch that goes first (is sent before the other batches of its tenant), the
            time of the last search for one of the batch's slices.
        seek_after: before this time, the worker does not search for a tenant. Set after `_MAX_MISSES` misses.
        seek_more_after: before this time, the worker does not search for a further batch of a tenant that has
            lines on this worker.
        is_seeking: True while a search for a tenant or a batch runs. A search ends when the next slice
            arrives.
        seeking: the tenant for which a search runs, if the tenant has no lines on this worker. Empty during
            all other searches, and if no search runs.
        misses: number of failed searches in a row for tenants without lines on this worker (`_end_search`).
        is_checked: True if no tenant needs a search now. `set_waiting` and the end of a search set it to
            False.
        is_first_checked: True if no batch that goes first needs a search now. `set_waiting` sets it to False.
    """

    slots: set[object] = field(default_factory=set[object])
    slices: set[HeldSlice] = field(default_factory=set[HeldSlice])
    ended: int = 0
    lines: float = _FIRST_ESTIMATE
    rate: float = 0.0
    answered: int = 0
    measured_at: float = 0.0
    sought: dict[str, float] = field(default_factory=dict[str, float])
    sought_batches: dict[str, float] = field(default_factory=dict[str, float])
    seek_after: float = -math.inf
    seek_more_after: float = -math.inf
    is_seeking: bool = False
    seeking: str = ""
    misses: int = 0
    is_checked: bool = False
    is_first_checked: bool = False

    def with_lines(self) -> list[HeldSlice]:
        """Return the slices that have lines to send, and those whose lines were not read yet."""
        return [held for held in self.slices if held.ready is None or held.ready()]

    def measure_rate(self, answered: int, now: float) -> None:
        """Update `rate` from the number of the model's requests that have ended so far (`answered`).

        If the last measurement is less than `_MEASURE_SECONDS` ago, do nothing.
        """
        seconds = now - self.measured_at
        if seconds < _MEASURE_SECONDS:
            return
        count = max(0, answered - self.answered)
        change = min(1.0, seconds / _RATE_SECONDS) * (count / seconds - self.rate)
        # A few responses may arrive together by chance. Lines that are kept for a rate that is too high are
        # missing on other workers at the end of a batch. So only a rise that chance does not explain counts
        # at once.
        certain = (count - 2 * math.sqrt(count)) / seconds
        self.rate = max(certain, self.rate + change)
        self.answered, self.measured_at = answered, now
