"""Records the histories of `test_replay.py`: `python -m tests.replay.record [name ...]`.

Each name says what its history proves. Record anew only what a change broke on purpose, and only if no run
that began before the change can still be open; otherwise branch with `workflow.patched` and keep the old one.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest
from temporalio.client import WorkflowFailureError

from batchwright.contracts.retention import Kind, RetentionOrder
from tests.replay.batches import SCENARIOS
from tests.replay.on_a_server import PINNED, SCHEDULED, record_pinned, record_scheduled
from tests.replay.written import goes_on, write, write_batch
from tests.workflows.house import House, time_skipping_server
from tests.workflows.steps import FOREIGN

Scenario = Callable[[House], Awaitable[None]]


async def everything_due(house: House) -> None:
    """Several turns of one kind, and one kind that is given up."""
    house.retention.turns[Kind.UPLOADS] = 3
    house.retention.failing[Kind.BATCHES] = FOREIGN
    with pytest.raises(WorkflowFailureError):
        await (await house.start_retention(RetentionOrder())).result()


async def continued_as_new_in_a_kind(house: House) -> None:
    house.retention.turns[Kind.FILES] = 5
    await (await house.start_retention(RetentionOrder(turns=3))).result()


async def cancelled(house: House) -> None:
    house.retention.released.clear()
    run = await house.start_retention(RetentionOrder())
    await house.retention.started.wait()
    await run.cancel()
    with pytest.raises(WorkflowFailureError):
        await run.result()


RETENTION: dict[str, Scenario] = {
    scenario.__name__: scenario for scenario in (everything_due, continued_as_new_in_a_kind, cancelled)
}


async def compared(house: House) -> None:
    house.auditing.failures = 1
    await house.audited()


AUDITS: dict[str, Scenario] = {compared.__name__: compared}


async def _record(name: str) -> None:
    async with time_skipping_server() as environment:
        house = House(environment)
        async with house.workers(["m", "n"]):
            await SCENARIOS[name](house)
            await write_batch(house, name)


async def _record_retention(name: str) -> None:
    async with time_skipping_server() as environment:
        house = House(environment)
        async with house.workers():
            await RETENTION[name](house)
            run = await write(house, "retention", house.first_run, f"retention_{name}")
            if goes_on(run):
                await write(house, "retention", None, f"retention_{name}_last")


async def _record_audit(name: str) -> None:
    async with time_skipping_server() as environment:
        house = House(environment)
        async with house.workers():
            await AUDITS[name](house)
            await write(house, "audit", None, f"audit_{name}")


async def _main(names: list[str]) -> None:
    recorders = {
        **dict.fromkeys(SCENARIOS, _record),
        **dict.fromkeys(RETENTION, _record_retention),
        **dict.fromkeys(AUDITS, _record_audit),
        **dict.fromkeys(PINNED, record_pinned),
        **dict.fromkeys(SCHEDULED, record_scheduled),
    }
    for name in names or recorders:
        await recorders[name](name)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
