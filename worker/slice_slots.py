"""Slots (permissions to poll and run one activity) for a task queue of slices (parts of batches).

Temporal's SDK gets a slot, and polls the queue, only while the worker wants another slice.
"""

import asyncio
import contextlib
import threading
import time

from temporalio.worker import (
    CustomSlotSupplier,
    FixedSizeSlotSupplier,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
    WorkerTuner,
)

from batchwright.activities.services.worker_slices.slice_demand import SliceDemand

_POLL_CHECK_SECONDS = 0.02  # interval of checks if a reserved slot is in use
_DEMAND_CHECK_SECONDS = 0.05  # interval of checks of the demand, which cost more
_MAX_POLL_SECONDS = 120.0  # Temporal's polls end after a minute


class SliceSlots(CustomSlotSupplier):
    """The supplier of slots: the SDK gets a slot only while the worker wants another slice.

    A slice is an activity that sends lines. When the SDK has a slot, it polls the task queue. The SDK may
    call `mark_slot_used` and `release_slot` on any thread. When a poller stops, the SDK cancels the task that
    runs `reserve_slot`, maybe on another thread.
    """

    def __init__(self, queue: str, demand: SliceDemand) -> None:
        """Create the slots of one task queue.

        Args:
            queue: name of the model that has this task queue; `ALL_MODELS` for the queue that models share.
            demand: decides if the worker wants another slice (activity that sends lines) from the queue.
        """
        self._queue, self._demand = queue, demand
        self._polls_until = 0.0  # until this time, a reserved slot may be unused
        self._reserved: SlotPermit | None = None

    def tuner(self) -> WorkerTuner:
        """Return a tuner for the SDK that uses these slots, for a worker that runs only activities."""
        unused = FixedSizeSlotSupplier(1)
        return WorkerTuner.create_composite(
            workflow_supplier=unused,
            activity_supplier=self,
            local_activity_supplier=unused,
            nexus_supplier=unused,
        )

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        # The SDK reserves the next slot while it still polls with the last slot, which counts only when used.
        while True:
            if self._reserved is not None and time.monotonic() < self._polls_until:
                await _pause(_POLL_CHECK_SECONDS)
            elif not self._demand.wants_another(self._queue):
                await _pause(_DEMAND_CHECK_SECONDS)
            else:
                break
        self._reserved, self._polls_until = SlotPermit(), time.monotonic() + _MAX_POLL_SECONDS
        return self._reserved

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        return None  # for eager activities, and slices are never eager

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        self._demand.take(self._queue, ctx.permit)
        self._forget(ctx.permit)

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        self._demand.release(self._queue, ctx.permit)
        self._forget(ctx.permit)

    def _forget(self, permit: SlotPermit) -> None:
        if permit is self._reserved:
            self._reserved = None


class _Pause(asyncio.Future[None]):
    """A future that a task can await even if another thread may cancel the task.

    If a task is cancelled, the future that the task awaits is also cancelled. An ordinary future then
    schedules a callback in the event loop. On another thread, this is not safe.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread, self._task = threading.get_ident(), asyncio.current_task()

    def cancel(self, msg: object = None) -> bool:
        if threading.get_ident() == self._thread or self._task is None:
            return super().cancel(msg)
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self.get_loop().call_soon_threadsafe(self._task.cancel, msg)
        return True

    def end(self) -> None:
        if not self.done():
            self.set_result(None)


async def _pause(seconds: float) -> None:
    pause = _Pause()
    timer = pause.get_loop().call_later(seconds, pause.end)
    try:
        await pause
    finally:
        timer.cancel()
