"""Tests of the data that the consistency check reads from the history of a batch's workflow.

The histories are recorded ones.
"""

from collections.abc import AsyncIterator
from typing import cast

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from batchwright.activities.consistency.workflow_runs import TemporalBatchRunSource
from batchwright.temporal import DATA_CONVERTER
from tests.replay.written import HISTORIES


class RecordedRuns:
    """A fake Temporal client that reads recorded histories of workflows from files.

    The id of a workflow is the name of its file.
    """

    data_converter = DATA_CONVERTER

    def get_workflow_handle(self, workflow_id: str) -> "RecordedRun":
        file = HISTORIES / f"{workflow_id}.json"
        return RecordedRun(
            WorkflowHistory.from_json(workflow_id, file.read_text()) if file.exists() else None
        )


class RecordedRun:
    def __init__(self, history: WorkflowHistory | None) -> None:
        self._history = history

    async def fetch_history_events(self, *, page_size: int | None = None) -> AsyncIterator[HistoryEvent]:
        if self._history is None:
            raise RPCError("workflow execution not found", RPCStatusCode.NOT_FOUND, b"")
        for event in self._history.events:
            yield event


@pytest.fixture
def runs() -> TemporalBatchRunSource:
    return TemporalBatchRunSource(cast("Client", RecordedRuns()))


async def test_the_result_of_an_ingestion_is_read_from_the_history(runs: TemporalBatchRunSource) -> None:
    ingested = await runs.ingested("batch_cancelled_while_running")
    assert ingested is not None
    assert ingested.total == sum(share.lines for share in ingested.models) > 0
    assert all(share.model for share in ingested.models)


async def test_a_batch_that_was_cancelled_before_its_ingestion_ended_has_no_result(
    runs: TemporalBatchRunSource,
) -> None:
    assert await runs.ingested("batch_cancelled_while_validating") is None


async def test_a_run_that_temporal_has_deleted_has_no_order(runs: TemporalBatchRunSource) -> None:
    order = await runs.order("batch_cancelled_while_validating")
    assert order is not None
    assert order.tenant
    assert await runs.order("batch_deleted") is None
