"""A simulated backend with few slots and a queue of direct callers."""

import asyncio

import httpx

from batchwright.simulator.backend import DISPATCHER, SimulatorOptions
from tests.unit.simulator.simulators import CHAT, MODEL, Simulated, simulated, until

MARK = {"X-Source": DISPATCHER}


def options(slots: int, direct_queue: int = 10) -> SimulatorOptions:
    return SimulatorOptions(models=(MODEL,), slots=slots, direct_queue=direct_queue)


async def post(backend: Simulated, mark: dict[str, str] | None = None) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}]}
    return await backend.http.post(CHAT, json=body, headers=mark)


async def sent(backend: Simulated, mark: dict[str, str] | None = None) -> asyncio.Task[httpx.Response]:
    """Send a request that the backend holds, and return once the backend has it."""
    before = backend.ledger.requests
    request = asyncio.create_task(post(backend, mark))
    await until(lambda: backend.ledger.requests > before)
    return request


async def test_requests_of_a_dispatcher_are_refused_while_all_slots_are_taken() -> None:
    async with simulated(options(2)) as backend:
        fault = (await backend.break_it(kind="hold")).json()["id"]
        held = [await sent(backend), await sent(backend, MARK)]
        refused = await post(backend, MARK)
        assert (refused.status_code, "GPU busy" in refused.text) == (503, True)
        await backend.http.delete(f"/admin/faults/{fault}")
        assert [(await each).status_code for each in held] == [200, 200]
        assert (await post(backend, MARK)).status_code == 200


async def test_direct_callers_get_every_free_slot_before_the_dispatcher() -> None:
    async with simulated(options(1)) as backend:
        fault = (await backend.break_it(kind="hold")).json()["id"]
        first = await sent(backend, MARK)
        waiting = [await sent(backend), await sent(backend)]
        assert (await post(backend, MARK)).status_code == 503
        await backend.http.delete(f"/admin/faults/{fault}")
        assert [(await each).status_code for each in (first, *waiting)] == [200, 200, 200]
        assert (await post(backend, MARK)).status_code == 200


async def test_a_direct_caller_is_refused_if_the_queue_is_full_and_leaves_it_if_it_disconnects() -> None:
    async with simulated(options(1, direct_queue=1)) as backend:
        fault = (await backend.break_it(kind="hold")).json()["id"]
        running, waiting = await sent(backend), await sent(backend)
        refused = await post(backend)
        assert (refused.status_code, "Queue full" in refused.text) == (503, True)
        waiting.cancel()
        await until(lambda: backend.ledger.in_flight == 1)
        late = await sent(backend)
        await backend.http.delete(f"/admin/faults/{fault}")
        assert [(await each).status_code for each in (running, late)] == [200, 200]
