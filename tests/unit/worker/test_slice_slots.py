"""A worker's slots for slices of a task queue: the SDK polls Temporal only while the worker wants another
slice.
"""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import uvloop
from temporalio.worker import SlotPermit

from batchwright.activities.services.worker_slices.slice_demand import SliceDemand
from batchwright.worker.slice_slots import SliceSlots

NO_CONTEXT = cast(Any, None)


class Hungry:
    """A fake of the worker's demand: it wants another slice while `wants` is True. `used` has the slots in
    use.
    """

    def __init__(self) -> None:
        self.wants = True
        self.used: set[object] = set()

    def wants_another(self, queue: str) -> bool:
        return self.wants

    def take(self, queue: str, slot: object) -> None:
        self.used.add(slot)

    def release(self, queue: str, slot: object) -> None:
        self.used.discard(slot)


async def is_reserved(reserving: "asyncio.Task[SlotPermit]") -> bool:
    """Return True if the slot is reserved within 0.1 s, the time of a few checks."""
    done, _ = await asyncio.wait([reserving], timeout=0.1)
    return bool(done)


async def test_the_next_slot_is_reserved_when_the_last_one_is_used() -> None:
    demand = Hungry()
    slots = SliceSlots("m", cast(SliceDemand, demand))
    first = await slots.reserve_slot(NO_CONTEXT)
    second = asyncio.create_task(slots.reserve_slot(NO_CONTEXT))
    assert not await is_reserved(second)
    slots.mark_slot_used(cast(Any, SimpleNamespace(permit=first)))
    assert demand.used == {first}
    assert await second is not first


async def test_the_next_slot_is_reserved_when_a_poll_has_brought_nothing() -> None:
    slots = SliceSlots("m", cast(SliceDemand, Hungry()))
    first = await slots.reserve_slot(NO_CONTEXT)
    slots.release_slot(cast(Any, SimpleNamespace(permit=first)))
    assert await slots.reserve_slot(NO_CONTEXT) is not first


async def test_no_slot_is_reserved_while_the_worker_has_enough_to_send() -> None:
    demand = Hungry()
    demand.wants = False
    slots = SliceSlots("m", cast(SliceDemand, demand))
    reserving = asyncio.create_task(slots.reserve_slot(NO_CONTEXT))
    assert not await is_reserved(reserving)
    demand.wants = True
    await reserving


def test_another_thread_can_cancel_a_reservation_as_the_sdk_does_when_its_poller_stops() -> None:
    errors: list[Exception] = []

    def cancel(task: "asyncio.Task[SlotPermit]") -> None:
        try:
            task.cancel()
        except Exception as error:
            errors.append(error)

    async def is_cancelled_by_thread() -> bool:
        demand = Hungry()
        demand.wants = False
        slots = SliceSlots("m", cast(SliceDemand, demand))
        reserving = asyncio.create_task(slots.reserve_slot(NO_CONTEXT))
        await asyncio.sleep(0)
        await asyncio.to_thread(cancel, reserving)
        await asyncio.wait([reserving], timeout=240)
        return reserving.cancelled()

    loop = uvloop.new_event_loop()
    loop.set_debug(True)  # calls on a wrong thread are errors then, and are lost without it
    assert loop.run_until_complete(is_cancelled_by_thread())
    loop.close()
    assert errors == []
