"""The workflow sandbox: its restrictions and its cache. The tests in test_replay also use the sandbox."""

from collections.abc import Callable

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.temporal import DATA_CONVERTER
from batchwright.worker.wiring import workflow_sandbox
from batchwright.workflows import batch
from batchwright.workflows.batch import BatchWorkflow
from tests.replay.written import HISTORIES


async def replay_with(
    monkeypatch: pytest.MonkeyPatch, step: Callable[[BatchOrder], None]
) -> Exception | None:
    """Replace the first step of a completed batch by `step`, replay the batch, and return the failure."""
    monkeypatch.setattr(batch, "ensure_search_attributes", step)
    recorded = WorkflowHistory.from_json("one", (HISTORIES / "batch_completed.json").read_text())
    replayer = Replayer(
        workflows=[BatchWorkflow], data_converter=DATA_CONVERTER, workflow_runner=workflow_sandbox()
    )
    result = await replayer.replay_workflow(recorded, raise_on_replay_failure=False)
    return result.replay_failure


async def test_a_run_does_not_import_its_workflow_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BatchOrder] = []
    begin = batch.ensure_search_attributes

    def begins(order: BatchOrder) -> None:
        seen.append(order)
        begin(order)

    assert await replay_with(monkeypatch, begins) is None
    assert len(seen) == 1  # a module of the run's own would not know the step put into this one


async def test_a_workflow_that_opens_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def opens(order: BatchOrder) -> None:
        open("/dev/null").close()

    assert "__builtins__.open" in str(await replay_with(monkeypatch, opens))
