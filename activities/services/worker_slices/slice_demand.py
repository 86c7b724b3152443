"""Decide when a worker takes another slice (a part of a batch's lines) from a task queue.

There is no fixed number of slices. A worker takes another slice if it could have more requests in flight than
its slices have lines ready. For example, a slice that only waits for its last responses has no lines ready.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from batchwright.activities.services.worker_slices.held_slices import HeldSlice
from batchwright.activities.services.worker_slices.slice_search import SliceSearch
from batchwright.inference.limits.concurrency_limiter import ConcurrencyLimiter
from batchwright.inference.limits.memory_budget import MemoryBudget
from batchwright.inference.limits.tenant_and_model_limits import Limit
from batchwright.rules.limits.rate_allocation import ALL_MODELS

MAX_SLICES = 64  # slices of one task queue that a worker holds at once
_MAX_BLOCKED_SLICES = 4  # maximum number of slices while no request of the model may be sent
_MAX_SENDING_SLICES = 16  # of the queue that models share; slices that only wait do not count
_MAX_YIELDING = 16  # slices of one task queue that give up their places at the same time
_FETCH_SECONDS = 1.0  # lines for this time are kept ready, because fetching a slice takes time
_NEW_SLICE_SHARE = 0.2  # weight of the newest slice in the average number of lines
_FIRST_ESTIMATE = 64.0  # assumed lines of a slice, until the first slice is read
_RATE_SECONDS = 2.0  # the response rate is averaged over this time; a clear rise counts at once
_MEASURE_SECONDS = 0.25  # the rate is measured over at least this time

# Number of batches that have unsettled lines and may send them now, by model and tenant.
WaitingBatches = Mapping[str, Mapping[str, int]]


@dataclass(eq=False)
class TaskQueueSlices:
    """The slices that this worker took from one task queue.

    Attributes:
        slots: for each taken slice, the permission of Temporal's SDK to run it. Two more kinds of slices are
            included: those that have not begun to run, and those whose end Temporal has not confirmed yet.
        ended: number of slices that have ended but are still in `slots`.
        lines: average number of lines without a result in a slice, from the slices read so far.
        rate: responses per second of the model, as `measure_rate` computes it.
        answered: number of responses that `measure_rate` knew at its last measurement (`measured_at`).
    """

    slots: set[object] = field(default_factory=set[object])
    slices: set[HeldSlice] = field(default_factory=set[HeldSlice])
    search: SliceSearch = field(default_factory=SliceSearch)
    ended: int = 0
    lines: float = _FIRST_ESTIMATE
    rate: float = 0.0
    answered: int = 0
    measured_at: float = 0.0

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


class SliceDemand:
    """The rules that decide whether a worker process should take another slice from a task queue.

    For this, the object knows all slices that the process holds.

    In all methods, a task queue is named by its model. The name `ALL_MODELS` means the task queue that
    several models share.
    """

    def __init__(
        self,
        limiter: ConcurrencyLimiter,
        budget: MemoryBudget,
        is_blocked: Callable[[str], bool],
        has_share: Callable[[str], bool] = lambda _: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the object for a worker process that has no slice yet.

        Args:
            limiter: permits of this process.
            budget: memory of this process for slices.
            is_blocked: returns True while no worker may send requests of the given model.
            has_share: returns False while only other workers may send requests of the given model.
            clock: returns the current time in seconds.
        """
        self._limiter, self._budget, self._clock = limiter, budget, clock
        self._is_blocked, self._has_share = is_blocked, has_share
        self._queues: defaultdict[str, TaskQueueSlices] = defaultdict(TaskQueueSlices)
        self._waiting: WaitingBatches = {}
        self._sharing: Collection[str] = ()  # models whose slices come from the queue `ALL_MODELS`
        self._lock = Lock()  # guards `ended`, because Temporal's SDK calls `release` in its own threads

    def set_waiting(self, batches: WaitingBatches, sharing: Collection[str] = ()) -> None:
        """Store how many batches have lines that may be sent now, for each model and tenant.

        Args:
            batches: the number of such batches. Batches that run only on other workers are included.
            sharing: models whose slices come from the shared task queue, `ALL_MODELS`.
        """
        self._waiting, self._sharing = batches, sharing
        for queue in list(self._queues.values()):
            queue.search.check_again()

    def retain_only(self, models: Collection[str]) -> None:
        """Forget the task queues of all models not in `models`, except queues with slices on this worker."""
        for name, queue in list(self._queues.items()):
            if name not in models and not queue.slots and not queue.slices:
                del self._queues[name]

    # Slices of this worker

    def take(self, queue: str, slot: object) -> None:
        """Count a slice that has arrived from the task queue `queue`.

        `slot` is the permission of Temporal's SDK to run the slice. It identifies the slice until `release`.
        """
        self._queues[queue].slots.add(slot)

    def release(self, queue: str, slot: object) -> None:
        """Stop counting the slice that `take` has counted with this `slot`. An unknown `slot` is ignored."""
        here = self._queues.get(queue)
        if here is not None and slot in here.slots:
            with self._lock:
                here.slots.discard(slot)
                here.ended = max(0, here.ended - 1)

    @contextmanager
    def holding(self, queue: str, model: str, tenant: str, batch_id: str) -> Generator[HeldSlice]:
        """Context manager that counts a slice as running on this worker, and yields the slice.

        The block must contain the whole activity that runs the slice.
        """
        held, here = HeldSlice(queue, model, tenant, batch_id), self._queues[queue]
        first = self._limiter.limits.tenant_settings.ranks(model).first
        is_wrong = here.search.slice_arrived(held, here.with_lines(), first, self._clock())
        if is_wrong and not self._is_hungry(queue, here, arrived=1):
            held.is_surplus = True
            held.drain()
        here.slices.add(held)
        try:
            yield held
        finally:
            here.slices.remove(held)
            with self._lock:
                here.ended += 1

    def lines_read(self, held: HeldSlice, lines: int, ready: Callable[[], int]) -> None:
        """Record that a slice's lines were read.

        Args:
            lines: number of its lines without a result.
            ready: returns how many of its lines could be sent now.
        """
        held.ready = ready
        queue = self._queues[held.queue]
        queue.lines += _NEW_SLICE_SHARE * (lines - queue.lines)

    def decide_yield(self, held: HeldSlice) -> bool:
        """Decide if the slice must stop sending (yield), so that a waiting slice can run instead.

        Return the decision, which is also stored in the slice. Once it is True, it stays True.

        A slice waits if this worker already holds its maximum number of slices, or has not enough memory. For
        each waiting slice, only one slice must yield. Until the last response of a yielding slice has
        arrived, the slice keeps its memory and still counts as a held slice.
        """
        if not held.is_yielding:
            queue = self._queues[held.queue]
            held.is_yielding = self._must_free_memory(held) or (
                self._is_full(held.queue, queue)
                and sum(each.is_yielding for each in queue.slices) < self._count_missing(held.queue, queue)
            )
        return held.is_yielding

    def others_use_up_limit(self, held: HeldSlice, limit: Limit) -> bool:
        """Return True if this worker has enough other slices to send all lines that `limit` allows.

        If the result is True and `limit` stops the lines of this slice, the slice may end early. The result
        is False for all task queues except `ALL_MODELS`.

        The result is True if this worker has more than `_MAX_BLOCKED_SLICES` slices to which `limit` applies:
        slices of the same tenant for a limit of the tenant, otherwise slices of the same model. Slices that
        yield are not counted.
        """
        if held.queue != ALL_MODELS:
            return False
        others = (each for each in self._queues[held.queue].slices if not each.is_yielding)
        if limit.of_tenant:
            return sum(each.tenant == held.tenant for each in others) > _MAX_BLOCKED_SLICES
        return sum(each.model == held.model for each in others) > _MAX_BLOCKED_SLICES

    def holds_few_of_tenant(self, held: HeldSlice, few: int = _MAX_BLOCKED_SLICES) -> bool:
        """Return True if the worker has at most `few` slices of this slice's tenant from the same task queue.

        If the result is True and this slice cannot send, the worker takes more slices.

        Args:
            few: maximum number of slices. A lower number than `_MAX_BLOCKED_SLICES` is raised to
                `_MAX_BLOCKED_SLICES`.
        """
        here = self._queues[held.queue].slices
        return sum(other.tenant == held.tenant for other in here) <= max(_MAX_BLOCKED_SLICES, few)

    def _must_free_memory(self, held: HeldSlice) -> bool:
        """Return True if this slice must free its memory, because another slice waits for memory.

        One slice must free its memory for each slice that waits. The result is False in three cases: no slice
        waits, this slice holds no memory, or enough other slices already yield to free their memory.
        """
        waiting = self._budget.waiting
        if not waiting or not held.holds_memory:
            return False
        slices = (each for here in self._queues.values() for each in here.slices)
        return waiting > sum(each.is_yielding and each.holds_memory for each in slices)

    # Slices that wait elsewhere

    def wants_another(self, queue: str) -> bool:
        """Return True if the worker should take another slice from the task queue."""
        here = self._queues[queue]
        if self._is_full(queue, here) or any(held.waits_for_memory for held in here.slices):
            return False
        if queue == ALL_MODELS:
            return True
        if not self._has_share(queue):
            return False
        if len(here.slots) >= _MAX_BLOCKED_SLICES and self._is_blocked(queue):
            return False
        here.measure_rate(self._limiter.granted(queue) - self._limiter.used_by(queue), self._clock())
        return self._is_hungry(queue, here) or self._starts_search(queue, here)

    def _is_hungry(self, name: str, here: TaskQueueSlices, arrived: int = 0) -> bool:
        """Return True if the worker could send more lines than its slices from this queue have ready.

        Args:
            name: task queue from which slices are taken, named by its model.
            here: this worker's slices from this queue.
            arrived: number of slices in `here.slots` that have just arrived. The result does not count their
                lines, so the caller can decide whether the worker needs these slices.
        """
        counts = [held.ready() for held in here.slices if held.ready is not None]
        unread = max(0, len(here.slots) - here.ended - len(counts) - arrived)
        wanted = self._limiter.free(name) + max(1.0, here.rate * _FETCH_SECONDS)
        return sum(counts) + unread * here.lines < wanted

    def _is_full(self, name: str, queue: TaskQueueSlices) -> bool:
        if name != ALL_MODELS:
            return len(queue.slots) >= MAX_SLICES
        waiting_only = sum(held.ready is not None and not held.ready() for held in queue.slices)
        return len(queue.slots) >= min(MAX_SLICES, _MAX_SENDING_SLICES + waiting_only)

    def _count_missing(self, name: str, queue: TaskQueueSlices) -> int:
        """Count the batches that have lines to send but no slice on this worker.

        The result is at most `_MAX_YIELDING`. In the task queue `ALL_MODELS`, a batch is also counted if all
        its slices on this worker only wait for their last responses.
        """
        models, slices = [name], queue.slices
        if name == ALL_MODELS:
            models = [model for model in self._sharing if not self._limiter.is_model_limited(model)]
            slices = queue.with_lines()
        batches_here = {(held.model, held.tenant, held.batch_id) for held in slices}
        here = Counter((model, tenant) for model, tenant, _ in batches_here)
        missing = (
            max(0, batches - here[model, tenant])
            for model in models
            for tenant, batches in self._uncapped(model).items()
        )
        return min(_MAX_YIELDING, sum(missing))

    def _uncapped(self, model: str) -> Mapping[str, int]:
        """Return, for each tenant, how many of its batches have lines of the model to send.

        A tenant is left out if a limit of the tenant, or of its API keys, makes its lines for the model wait.
        """
        waiting = self._waiting.get(model, {})
        return {
            tenant: batches
            for tenant, batches in waiting.items()
            if not self._limiter.is_capped(model, tenant)
        }

    def _starts_search(self, name: str, here: TaskQueueSlices) -> bool:
        """Return True if the worker should take another slice although it needs no more lines.

        The reason is a search: the next slice may belong to a tenant or batch that has no lines on this
        worker.

        Args:
            name: task queue from which slices are taken, named by its model.
            here: this worker's slices from this queue.
        """
        search, waiting, now = here.search, self._waiting.get(name, {}), self._clock()
        if search.must_check_tenants(now) and search.start_for_tenant(
            self._uncapped(name), waiting, here.with_lines(), now
        ):
            return True
        if not search.must_check_first_batches:
            return False
        first = self._limiter.limits.tenant_settings.ranks(name).first
        return search.start_for_first_batch(first, waiting, here.with_lines(), now)
