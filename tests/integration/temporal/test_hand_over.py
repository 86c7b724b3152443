"""A model run (the workflow for one model of a batch) whose history is long starts another run for its
remaining slices.

The tests use a real Temporal server and real slices.
"""

import asyncio
from collections import Counter
from datetime import timedelta

import httpx
import pytest
from temporalio.worker import Worker

from batchwright.activities.execution.activity import Execution
from batchwright.activities.execution.slice_state.lease import temporal_heartbeat
from batchwright.api.temporal_gateway import TemporalClientGateway
from batchwright.contracts.temporal_names import inference_queue, model_run_id
from batchwright.contracts.terms import BatchStatus
from batchwright.rules.planning.plan_format import PlanEntry, SliceRecord, pack_entry, pack_slice
from batchwright.rules.stored_objects import object_keys
from batchwright.settings import load
from tests.activities.execution.fixture import (
    MODEL,
    ExecutionFixture,
    content_of,
    eventually,
    line_of,
    ok,
)
from tests.e2e.batches import until
from tests.fakes.storage import MemoryStorage
from tests.integration.temporal.clusters import server
from tests.workflows.fixture import POLICY, WorkflowFixture
from tests.workflows.stub_activities import ingested, share

pytestmark = pytest.mark.integration
SLICES = 20
SLOW = "0"  # content of the line in slice 0
BEAT = timedelta(seconds=0.1)


async def plan_slices_of_a_line(storage: MemoryStorage, prefix: str) -> None:
    """Store a plan with `SLICES` slices. Each has one line, whose content is the number of the slice."""
    plan, shard, table = b"", b"", b""
    for number in range(SLICES):
        line = line_of(number) + b"\n"
        table += pack_slice(SliceRecord(number, number, len(shard), 1, len(line), 1))
        plan += pack_entry(PlanEntry(len(shard), len(line), 0))
        shard += line
    await storage.put(object_keys.plan(prefix, MODEL), plan)
    await storage.put(object_keys.shard(prefix, MODEL), shard)
    await storage.put(object_keys.slice_table(prefix, MODEL), table)


async def test_a_request_that_is_in_flight_when_its_model_run_hands_over_is_sent_once() -> None:
    """The backend answers the request only when all other slices have ended. A cancel would abort it
    immediately.
    """
    released = asyncio.Event()
    async with server() as environment:
        workflows, slices = WorkflowFixture(environment), ExecutionFixture(ok)
        address = environment.client.service_client.config.target_host
        gateway = TemporalClientGateway(environment.client, load(temporal_address=address))
        slices.context.heartbeat = lambda: temporal_heartbeat(environment.client)

        async def slow_or_not(sent: httpx.Request) -> httpx.Response:
            if content_of(sent) == SLOW:
                await released.wait()
            return ok(content_of(sent))

        slices.answer = slow_or_not
        workflows.ingestion.result = planned = ingested(share(MODEL, SLICES))
        await plan_slices_of_a_line(slices.storage, planned.ingest_prefix)
        policy = POLICY.model_copy(update={"hand_over_events": 40, "outstanding_slices": 2})
        inference = Worker(
            environment.client,
            task_queue=inference_queue(MODEL),
            activities=[Execution(slices.context).run_slice],
            max_heartbeat_throttle_interval=BEAT,
            default_heartbeat_throttle_interval=BEAT,
        )
        async with workflows.workers([]), inference:
            batch = await workflows.start(await workflows.order(policy=policy))

            async def only_the_first_run_is_left() -> bool:
                return await gateway.children(batch.id) == [model_run_id(batch.id, MODEL)]

            await eventually(lambda: len(set(slices.sent)) == SLICES)
            await until(only_the_first_run_is_left)
            released.set()
            result = await batch.result()
    assert result.status == BatchStatus.COMPLETED
    assert Counter(slices.sent) == Counter(str(number) for number in range(SLICES))
