"""A real server with fair task queues: one tenant's queued slices do not delay the slices of
another tenant.
"""

from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Worker

from batchwright.contracts.temporal_names import CONTROL_QUEUE
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.rules.dispatch.fair_queue import fresh_fairness_key
from batchwright.temporal.workflow_starts import start_batch
from batchwright.workflows.batch import BatchWorkflow
from tests.timing.fair_turns import fair_fixture, measure
from tests.timing.scene import until

QUEUED = 32
_STARTED, _COMPLETED = 3, 4  # events of a run's first task


async def test_with_a_fresh_fairness_key_the_next_batch_does_not_wait_for_slices_of_a_cancelled_one() -> None:
    own, _ = await measure(QUEUED, 2, fresh_fairness_key("a", "cancelled-1"))
    assert own < QUEUED


async def test_a_batch_begins_before_most_of_those_that_another_tenant_started_earlier() -> None:
    async with fair_fixture(controlled=False) as fixture:
        order = await fixture.order()
        many = [_order(order, "many", f"many-{number}") for number in range(100)]
        for each in [*many, last := _order(order, "one", "last")]:
            await start_batch(fixture.client, each)
        async with Worker(fixture.client, task_queue=CONTROL_QUEUE, workflows=[BatchWorkflow]):
            begun = {each.batch_id: await _begun(fixture.client, each.batch_id) for each in [*many, last]}
    assert sorted(begun, key=begun.__getitem__).index("last") < 20


def _order(order: BatchOrder, tenant: str, name: str) -> BatchOrder:
    return order.model_copy(update={"tenant": tenant, "batch_id": name})


async def _begun(client: Client, batch_id: str) -> float:
    """Wait until a worker runs the first task of the run. Return the Unix time at which it began."""
    found: list[WorkflowHistory] = []

    async def has_begun() -> bool:
        history = await client.get_workflow_handle(batch_id).fetch_history()
        found[:] = [history]
        return len(history.events) >= _COMPLETED

    await until(has_begun)
    return found[0].events[_STARTED - 1].event_time.ToNanoseconds() / 1e9
