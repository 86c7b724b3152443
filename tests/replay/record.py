"""Records the histories of `test_replay.py`: `python -m tests.replay.record [name ...]`.

Each name says what its history proves. Record anew only what a change broke on purpose, and only if no run
that began before the change can still be open; otherwise branch with `workflow.patched` and keep the old one.
"""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.client import WorkflowFailureError, WorkflowHistory

from batchwright.contracts.retention import Kind, RetentionOrder
from tests.replay.batches import SCENARIOS
from tests.workflows.house import House, time_skipping_server
from tests.workflows.steps import FOREIGN

HISTORIES = Path(__file__).parent / "histories"
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
            batch = await _write(house, "batch_1", None, f"batch_{name}")
            for child in _first_runs(batch):
                kind = f"model_run_{name}_{child.workflow_id.rpartition('/')[2]}"
                run = await _write(house, child.workflow_id, child.run_id, kind)
                if run.events[-1].HasField("workflow_execution_continued_as_new_event_attributes"):
                    await _write(house, child.workflow_id, None, f"{kind}_last")


def _first_runs(batch: WorkflowHistory) -> list[WorkflowExecution]:
    return [
        event.child_workflow_execution_started_event_attributes.workflow_execution
        for event in batch.events
        if event.HasField("child_workflow_execution_started_event_attributes")
    ]


async def _write(house: House, workflow_id: str, run_id: str | None, name: str) -> WorkflowHistory:
    history = await house.client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
    (HISTORIES / f"{name}.json").write_text(_anonymous(history.to_json()) + "\n")
    return history


def _anonymous(text: str) -> str:
    text = re.sub(r'"stackTrace": "(?:[^"\\]|\\.)*"', '"stackTrace": ""', text)
    return re.sub(r'"identity": "[^"]*"', '"identity": "recorder"', text)


async def _record_retention(name: str) -> None:
    async with time_skipping_server() as environment:
        house = House(environment)
        async with house.workers():
            await RETENTION[name](house)
            run = await _write(house, "retention", house.first_run, f"retention_{name}")
            if run.events[-1].HasField("workflow_execution_continued_as_new_event_attributes"):
                await _write(house, "retention", None, f"retention_{name}_last")


async def _record_audit(name: str) -> None:
    async with time_skipping_server() as environment:
        house = House(environment)
        async with house.workers():
            await AUDITS[name](house)
            await _write(house, "audit", None, f"audit_{name}")


async def _main(names: list[str]) -> None:
    recorders = {
        **dict.fromkeys(SCENARIOS, _record),
        **dict.fromkeys(RETENTION, _record_retention),
        **dict.fromkeys(AUDITS, _record_audit),
    }
    for name in names or recorders:
        await recorders[name](name)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
