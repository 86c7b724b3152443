"""Recorded runs can still be replayed. If a test fails here, running batches would get stuck."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import VersioningBehavior
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchResult
from batchwright.telemetry.trace_interceptor import TelemetryInterceptor
from batchwright.temporal import DATA_CONVERTER
from batchwright.worker.wiring import workflow_sandbox
from batchwright.workflows.batch import BatchWorkflow
from batchwright.workflows.consistency_check import ConsistencyCheckWorkflow
from batchwright.workflows.model_run import ModelRunWorkflow
from batchwright.workflows.output_copy import OutputCopyWorkflow
from batchwright.workflows.retention import RetentionWorkflow
from batchwright.workflows.scheduled_batch import ScheduledBatchWorkflow
from batchwright.workflows.webhook_delivery import WebhookDeliveryWorkflow
from tests.integration.temporal.test_workflows import BUILD
from tests.replay.batches import WAYS
from tests.replay.fingerprint import BASELINE, fingerprint
from tests.replay.on_a_server import PINNED, PREFIX, SCHEDULED
from tests.replay.record import RETENTION, SCHEDULED_BATCHES, WEBHOOKS
from tests.replay.written import HISTORIES, file_names

RECORDED = sorted(HISTORIES.glob("*.json"))


def named(path: Path) -> str:
    return path.stem


def history(name: str) -> WorkflowHistory:
    return WorkflowHistory.from_json(name, (HISTORIES / f"{name}.json").read_text())


def replayer(*workflows: type) -> Replayer:
    return Replayer(
        workflows=workflows,
        data_converter=DATA_CONVERTER,
        interceptors=[TelemetryInterceptor()],
        workflow_runner=workflow_sandbox(),
    )


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Exception | None]:
    """The error with which the replay of each history ended; None if it succeeded.

    One worker replays all histories, because starting a worker takes time.
    """
    return asyncio.run(replayed())


async def replayed() -> dict[str, Exception | None]:
    async def histories() -> AsyncIterator[WorkflowHistory]:
        for path in RECORDED:
            yield history(path.stem)

    workflows = (
        *(BatchWorkflow, ModelRunWorkflow, RetentionWorkflow, ConsistencyCheckWorkflow),
        *(WebhookDeliveryWorkflow, ScheduledBatchWorkflow, OutputCopyWorkflow),
    )
    async with replayer(*workflows).workflow_replay_iterator(histories()) as results:
        return {result.history.workflow_id: result.replay_failure async for result in results}


@pytest.mark.parametrize("path", RECORDED, ids=named)
def test_a_recorded_history_replays(path: Path, outcomes: dict[str, Exception | None]) -> None:
    failure = outcomes[path.stem]
    if failure is not None:
        raise failure


def test_every_scenario_is_recorded() -> None:
    expected = {name for scenario, ways in WAYS.items() for name in file_names(scenario.__name__, ways)}
    for scenario in PINNED.values():
        expected |= set(file_names(scenario.__name__, WAYS[scenario], PREFIX))
    expected |= {f"retention_{name}" for name in RETENTION} | SCHEDULED.keys()
    expected |= {f"webhook_{name}" for name in WEBHOOKS}
    expected |= {f"scheduled_batch_{name}" for name in SCHEDULED_BATCHES}
    assert {path.stem.removesuffix("_last") for path in RECORDED} == expected


@pytest.mark.parametrize("path", [path for path in RECORDED if path.stem.startswith("pinned_")], ids=named)
def test_histories_named_pinned_ran_on_their_build(path: Path) -> None:
    done = [
        event.workflow_task_completed_event_attributes
        for event in history(path.stem).events
        if event.HasField("workflow_task_completed_event_attributes")
    ]
    behaviours = {task.versioning_behavior for task in done}
    assert behaviours == {VersioningBehavior.VERSIONING_BEHAVIOR_PINNED}
    assert {task.deployment_version.build_id for task in done} == {BUILD}


@pytest.mark.parametrize("name", SCHEDULED)
def test_histories_named_scheduled_were_started_by_their_schedule(name: str) -> None:
    begun = history(name).events[0].workflow_execution_started_event_attributes
    assert SCHEDULED[name].id in str(begun.search_attributes.indexed_fields["TemporalScheduledById"].data)


async def test_a_changed_order_of_commands_is_noticed() -> None:
    with pytest.raises(workflow.NondeterminismError):
        await replayer(SleepsFirst).replay_workflow(history("batch_completed"))


def test_the_commands_of_the_workflows_are_those_of_the_baseline() -> None:
    assert fingerprint() == BASELINE.read_text(), (
        "A workflow issues other commands than before. Runs that are open now would get stuck unless the "
        "change is behind workflow.patched(). Then: record its history (python -m tests.replay.record), "
        "and python -m tests.replay.fingerprint > tests/replay/fingerprint.txt"
    )


@workflow.defn(name="BatchWorkflow", sandboxed=False)
class SleepsFirst(BatchWorkflow):
    @workflow.run
    async def run(self, order: BatchOrder) -> BatchResult:
        await asyncio.sleep(1)
        return await super().run(order)
