"""Writes recorded workflow histories to files."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from temporalio.client import WorkflowHistory

from tests.replay.batches import WAYS
from tests.replay.early_ends import BATCH, Scenario
from tests.workflows.fixture import WorkflowFixture

HISTORIES = Path(__file__).parent / "histories"


def file_names(name: str, recorded: Iterable[str], prefix: str = "") -> Iterator[str]:
    """Yield the file names of a scenario's histories.

    Args:
        recorded: the recorded histories of the scenario, as in `batches.WAYS`.
    """
    for one in recorded:
        yield f"{prefix}batch_{name}" if one == BATCH else f"{prefix}model_run_{name}_{one.replace('/', '_')}"


async def write_batch(workflows: WorkflowFixture, scenario: Scenario, prefix: str = "") -> None:
    """Write the histories of a scenario that are to be recorded."""
    recorded = WAYS[scenario]
    for one, name in zip(recorded, file_names(scenario.__name__, recorded, prefix), strict=True):
        await write(workflows, "batch_1" if one == BATCH else f"batch_1/{one}", None, name)


async def write_runs(workflows: WorkflowFixture, workflow_id: str, first_run: str | None, name: str) -> None:
    """Write the history of a workflow's first run, and that of its last run if it continued as new."""
    history = await write(workflows, workflow_id, first_run, name)
    if history.events[-1].HasField("workflow_execution_continued_as_new_event_attributes"):
        await write(workflows, workflow_id, None, f"{name}_last")


async def write(
    workflows: WorkflowFixture, workflow_id: str, run_id: str | None, name: str
) -> WorkflowHistory:
    history = await workflows.client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
    # Without what only the machine that recorded it knows.
    text = re.sub(r'"stackTrace": "(?:[^"\\]|\\.)*"', '"stackTrace": ""', history.to_json())
    text = re.sub(r'"identity": "[^"]*"', '"identity": "recorder"', text)
    (HISTORIES / f"{name}.json").write_text(text + "\n")
    return history
