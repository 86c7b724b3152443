"""Recorded histories as files, without what only the machine that recorded them knows."""

import re
from pathlib import Path

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.client import WorkflowHistory

from tests.workflows.house import House

HISTORIES = Path(__file__).parent / "histories"


async def write_batch(house: House, name: str, prefix: str = "") -> None:
    """The batch's history and those of its model runs, the last run of each that went on."""
    batch = await write(house, "batch_1", None, f"{prefix}batch_{name}")
    for child in _first_runs(batch):
        kind = f"{prefix}model_run_{name}_{child.workflow_id.rpartition('/')[2]}"
        run = await write(house, child.workflow_id, child.run_id, kind)
        if goes_on(run):
            await write(house, child.workflow_id, None, f"{kind}_last")


async def write(house: House, workflow_id: str, run_id: str | None, name: str) -> WorkflowHistory:
    history = await house.client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
    (HISTORIES / f"{name}.json").write_text(_anonymous(history.to_json()) + "\n")
    return history


def goes_on(history: WorkflowHistory) -> bool:
    return history.events[-1].HasField("workflow_execution_continued_as_new_event_attributes")


def _first_runs(batch: WorkflowHistory) -> list[WorkflowExecution]:
    return [
        event.child_workflow_execution_started_event_attributes.workflow_execution
        for event in batch.events
        if event.HasField("child_workflow_execution_started_event_attributes")
    ]


def _anonymous(text: str) -> str:
    text = re.sub(r'"stackTrace": "(?:[^"\\]|\\.)*"', '"stackTrace": ""', text)
    return re.sub(r'"identity": "[^"]*"', '"identity": "recorder"', text)
