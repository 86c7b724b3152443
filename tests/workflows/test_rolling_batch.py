"""A rolling batch (a batch that collects single requests, so-called calls) takes calls for a while before its
input is read.
"""

from datetime import UTC, timedelta

import pytest

from batchwright.contracts.calls import RollingBatch
from batchwright.contracts.terms import BatchStatus
from tests.workflows.fixture import POLICY, WorkflowFixture

pytestmark = pytest.mark.integration
OPEN_SECONDS = 600.0
ROLLING = POLICY.model_copy(update={"rolling": RollingBatch(group="g", open_seconds=OPEN_SECONDS)})


async def test_the_input_of_a_rolling_batch_is_read_when_it_takes_no_more_calls(
    fixture: WorkflowFixture,
) -> None:
    async with fixture.workers():
        batch = await fixture.start(await fixture.order(policy=ROLLING))
        result = await batch.result()
        began = (await batch.describe()).start_time
        history = await batch.fetch_history()
    assert result.status is BatchStatus.COMPLETED
    scheduled = [
        event.event_time.ToDatetime(UTC)
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name == "ingest"
    ]
    assert len(scheduled) == 1
    assert scheduled[0] - began >= timedelta(seconds=OPEN_SECONDS)


async def test_a_rolling_batch_that_is_cancelled_while_it_takes_calls_ends(fixture: WorkflowFixture) -> None:
    async with fixture.workers():
        batch = await fixture.start(await fixture.order(policy=ROLLING))
        await batch.signal("cancel")
        result = await batch.result()
    assert result.status is BatchStatus.CANCELLED
    assert [request.status for request in fixture.lifecycle.requests] == [BatchStatus.CANCELLED]
