"""Findings of `batchwright doctor` about the workers that poll Temporal's task queues."""

from typing import cast

import pytest
from temporalio.client import Client

from batchwright.starter.diagnostics import temporal_checks
from batchwright.starter.diagnostics.backend_checks import BackendCheck
from batchwright.starter.diagnostics.findings import Finding, Level
from batchwright.starter.diagnostics.temporal_checks import check_pollers
from batchwright.temporal.task_queues import QueueReport

CLIENT = cast(Client, None)  # is only passed on


@pytest.fixture(autouse=True)
def polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker poll each task queue."""

    async def describe(_: Client, queue: str) -> QueueReport:
        return QueueReport(name=queue, backlog=0, oldest_seconds=0.0, pollers=1, limit=None)

    monkeypatch.setattr(temporal_checks, "describe_queue", describe)


@pytest.mark.parametrize("models", [[], ["llama"]], ids=["no-models", "models-of-the-registry-file"])
async def test_queues_of_unknown_models_are_not_vouched_for(models: list[str]) -> None:
    [finding] = await check_pollers(CLIENT, BackendCheck([], models, all_models_known=False))
    assert finding == Finding(
        part="workers",
        level=Level.WARNING,
        message="The task queues of some models were not checked, because not all models are known.",
        remedy="Mend what was found at the backends, then try again.",
    )


async def test_without_models_the_polled_queues_are_named() -> None:
    [finding] = await check_pollers(CLIENT, BackendCheck([], [], all_models_known=True))
    assert (finding.level, finding.message) == (
        Level.OK,
        "Workers poll control, io, outputs, webhooks, dispatch. "
        "No model is known, so no other queue is needed.",
    )


async def test_workers_that_poll_the_queues_of_all_models_are_ok() -> None:
    [finding] = await check_pollers(CLIENT, BackendCheck([], ["llama"], all_models_known=True))
    assert (finding.level, finding.message) == (Level.OK, "Every task queue that is needed is polled.")
