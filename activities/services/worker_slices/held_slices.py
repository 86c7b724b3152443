"""A slice that a worker holds: how many lines it has ready, and if it has to end."""

from collections.abc import Callable
from dataclasses import dataclass

from batchwright.inference.limits.memory_budget import MemoryBudget, Reservation


@dataclass(eq=False)
class HeldSlice:
    """A slice that this worker runs.

    `SliceDemand` uses the state of all held slices to decide if the worker takes another slice, and if a held
    slice must stop sending.

    Attributes:
        queue: model whose task queue the slice came from, or `ALL_MODELS` for the queue that models share.
        model: model of the slice's lines.
        ready: returns how many lines the slice could send now; None while its lines are not read yet.
        is_yielding: True if the slice must stop sending lines. Another slice, which waits for memory or for
            this worker, can then run.
        is_surplus: True if the worker has enough other lines to send, and does not need the slice. With two
            exceptions (see `refuse_surplus`), the slice returns to its task queue, so that another worker can
            run it.
        memory: the memory that the slice has requested for its lines; None if it has not requested any.
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

    def reserve_memory(self, budget: MemoryBudget, size: int) -> bool:
        """Request `size` bytes for the slice's lines, unless they are requested already.

        Return True if the memory is granted.
        """
        if self.memory is None:
            self.memory = budget.reserve(size)
        return self.memory.granted

    def release_memory(self, budget: MemoryBudget) -> None:
        """Free the memory of the slice's lines. If the slice waits for memory, it no longer waits."""
        if self.memory is not None:
            budget.release(self.memory)
            self.memory = None

    def drain(self) -> None:
        """Record that the slice will send no more lines, and only waits for responses."""
        self.ready = lambda: 0
