"""What the sandbox of workers refuses and saves; that histories replay in it is test_replay's."""

from collections.abc import Callable

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from batchwright.contracts.batch import BatchOrder
from batchwright.temporal import DATA_CONVERTER
from tests.replay.written import HISTORIES
from worker.sandbox import sandbox
from workflows import batch
from workflows.batch import BatchWorkflow


async def replay_with(
    monkeypatch: pytest.MonkeyPatch, step: Callable[[BatchOrder], None]
) -> Exception | None:
    """How a completed batch's replay ends where its first step is another."""
    monkeypatch.setattr(batch, "show_start", step)
    recorded = WorkflowHistory.from_json("one", (HISTORIES / "batch_completed.json").read_text())
    replayer = Replayer(workflows=[BatchWorkflow], data_converter=DATA_CONVERTER, workflow_runner=sandbox())
    result = await replayer.replay_workflow(recorded, raise_on_replay_failure=False)
    return result.replay_failure


async def test_a_run_does_not_import_its_workflow_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BatchOrder] = []
    begin = batch.show_start

    def begins(order: BatchOrder) -> None:
        seen.append(order)
        begin(order)

    assert await replay_with(monkeypatch, begins) is None
    assert len(seen) == 1  # a module of the run's own would not know the step put into this one


async def test_a_workflow_that_opens_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def opens(order: BatchOrder) -> None:
        open("/dev/null").close()

    assert "__builtins__.open" in str(await replay_with(monkeypatch, opens))
