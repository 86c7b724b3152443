"""A backend that serves direct callers first, and refuses lines of batches while it is busy."""

import asyncio

from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.rules.results.segment_format import RecordKind
from batchwright.simulator.backend import SimulatorOptions
from tests.activities.execution.fixture import (
    MODEL,
    ExecutionFixture,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
)
from tests.unit.simulator.simulators import simulated

DIRECT, LINES = "direct", 12


async def until_finished(execution: ExecutionFixture) -> SliceResult:
    while (result := await execution.turn(request())) is None:
        execution.next_attempt()
        execution.hurry()
    return result


async def test_lines_wait_while_direct_callers_have_all_slots_and_use_no_attempt() -> None:
    async with simulated(SimulatorOptions(models=(DIRECT, MODEL), slots=2)) as backend:
        config = ModelConfig(backends=[GatewayConfig(url=backend.url, send_dispatch_header=True)])
        execution = ExecutionFixture(ok, config=config, sockets=True, max_attempts=1)
        await plan_slice(execution.storage, [line_of(number) for number in range(LINES)])
        hold = (await backend.break_it(kind="hold", model=DIRECT)).json()["id"]
        direct = [asyncio.create_task(backend.chat(model=DIRECT)) for _ in range(3)]
        await eventually(lambda: backend.ledger.in_flight == 3)
        batch = asyncio.create_task(until_finished(execution))
        await eventually(lambda: MODEL in backend.ledger.models)
        refused = backend.ledger.models[MODEL]
        assert set(refused.statuses) <= {"503"}
        await backend.http.delete(f"/admin/faults/{hold}")
        assert [(await each).status_code for each in direct] == [200, 200, 200]
        assert await batch == SliceResult(finished=True, completed=LINES)
        assert {record.kind for record in await execution.records()} == {RecordKind.SETTLED}
        statuses = backend.ledger.models[MODEL].statuses
        assert statuses["200"] == LINES
        assert statuses["503"] > 0
        await execution.clients.aclose()
