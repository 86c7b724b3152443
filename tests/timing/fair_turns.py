"""`python -m tests.timing.fair_turns`: measures how long a tenant waits after a cancel or a pause.

It uses a real server with a fair task queue, in which tenants take turns. A turn is one run of a slice.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from batchwright.contracts.temporal_names import CONTROL_QUEUE, inference_queue
from batchwright.contracts.temporal_payloads.execution import ModelRunResult, SliceRequest, SliceResult
from batchwright.rules.dispatch.fair_queue import fresh_fairness_key
from batchwright.temporal import DATA_CONVERTER
from batchwright.workflows.model_run import ModelRunWorkflow
from tests.integration.temporal.clusters import started
from tests.timing.scene import until
from tests.workflows.fixture import POLICY, WorkflowFixture
from tests.workflows.stub_activities import FINISHED

_FAIR = (
    "useNewMatcher=true",
    "enableFairness=true",
    "numTaskqueueReadPartitions=1",
    "numTaskqueueWritePartitions=1",
)
_SLOTS, _TURN_SECONDS, _LOAD = 2, 0.1, 2_000
_CASES = ((32, 1), (32, 4), (8, 4))  # outstanding slices of a run, cancelled runs


class Queue:
    """The task queue of one model.

    `turns` has the workflow run of each turn, in order. While `moving` is not set, no turn ends.
    """

    def __init__(self, fixture: WorkflowFixture, outstanding: int) -> None:
        self._fixture = fixture
        self._policy = POLICY.model_copy(
            update={"outstanding_slices": outstanding, "cancel_grace_seconds": 3.0}
        )
        self.turns: list[str] = []
        self.moving = asyncio.Event()
        self.moving.set()
        fixture.execution.behaviours["m"] = self._turn

    async def _turn(self, request: SliceRequest) -> SliceResult:
        self.turns.append(request.batch_id)
        activity.heartbeat()
        await asyncio.sleep(_TURN_SECONDS)
        while not self.moving.is_set():
            activity.heartbeat()
            await asyncio.sleep(_TURN_SECONDS)
        return FINISHED

    async def start(
        self, tenant: str, name: str, slices: int, key: str = ""
    ) -> WorkflowHandle[ModelRunWorkflow, ModelRunResult]:
        policy = self._policy.model_copy(update={"fairness_key": key})
        run = await self._fixture.model_run(slices, policy=policy)
        run = run.model_copy(update={"tenant": tenant, "batch_id": name})
        return await self._fixture.client.start_workflow(
            ModelRunWorkflow.run, run, id=name, task_queue=CONTROL_QUEUE
        )

    async def queued(self, run: WorkflowHandle[ModelRunWorkflow, ModelRunResult]) -> None:
        """Wait until slices of the run are in the queue."""

        async def has_queued() -> bool:
            return bool((await run.describe()).raw_description.pending_activities)

        await until(has_queued)

    async def begun(self, name: str, since: int = 0) -> int:
        """Wait until the run `name` has a turn, leaving out the first `since` turns of the queue. Return the
        turn's number.
        """

        async def has_begun() -> bool:
            return name in self.turns[since:]

        await until(has_begun)
        return self.turns.index(name, since)


@asynccontextmanager
async def fair_fixture(*, controlled: bool = True) -> AsyncGenerator[WorkflowFixture]:
    """Context manager that starts a Temporal server with fair task queues. It yields a workflow fixture.

    Args:
        controlled: True to also run the workers for model runs and slices.
    """
    arguments = [word for value in _FAIR for word in ("--dynamic-config-value", f"matching.{value}")]
    async with await started(*arguments, is_set_up=True, data_converter=DATA_CONVERTER) as environment:
        fixture, client = WorkflowFixture(environment), environment.client
        if not controlled:
            yield fixture
            return
        async with _control(client), _inference_worker(client, fixture):
            yield fixture


def _control(client: Client) -> Worker:
    return Worker(client, task_queue=CONTROL_QUEUE, workflows=[ModelRunWorkflow])


def _inference_worker(client: Client, fixture: WorkflowFixture) -> Worker:
    slices = [fixture.execution.run_slice]
    return Worker(
        client, task_queue=inference_queue("m"), activities=slices, max_concurrent_activities=_SLOTS
    )


async def measure(outstanding: int, cancelled: int, key: str = "") -> tuple[int, int]:
    """Cancel workflow runs of a tenant. Measure how long its next batch and a new tenant's batch wait, in
    turns.

    Return the number of turns of other runs before the first turn of each of the two batches.

    Args:
        outstanding: number of slices that a run has in the queue at the same time.
        cancelled: number of cancelled runs.
        key: fairness key of the next batch, by which the queue distributes turns.
    """
    async with fair_fixture() as fixture:
        queue = Queue(fixture, outstanding)
        await queue.start("load", "load", _LOAD)
        await queue.begun("load")
        runs = [await queue.start("a", f"cancelled-{number}", 100) for number in range(cancelled)]
        await queue.begun("cancelled-0")
        for run in runs:
            await run.signal(ModelRunWorkflow.stop)
        await asyncio.gather(*(run.result() for run in runs))
        queue.moving.clear()  # turns that pass while the batches start would count
        before = len(queue.turns)
        for run in (await queue.start("a", "next", 5, key), await queue.start("b", "other", 5)):
            await queue.queued(run)
        queue.moving.set()
        return await queue.begun("next") - before, await queue.begun("other") - before


async def measure_pause(outstanding: int) -> int:
    """Pause and resume a run. Return the number of turns that other runs have before its next turn."""
    async with fair_fixture() as fixture:
        queue = Queue(fixture, outstanding)
        await queue.start("load", "load", _LOAD)
        await queue.begun("load")
        run = await queue.start("a", "paused", 100)
        await queue.begun("paused")
        await run.signal(ModelRunWorkflow.pause)

        async def has_nothing_queued() -> bool:
            return not (await run.describe()).raw_description.pending_activities

        await until(has_nothing_queued)
        before = len(queue.turns)
        await run.signal(ModelRunWorkflow.resume)
        return await queue.begun("paused", before) - before


async def main() -> None:
    for outstanding in (32, 8):
        turns = await measure_pause(outstanding)
        print(f"paused, {outstanding} slices queued: goes on after {turns} turns of others")
    for outstanding, cancelled in _CASES:
        for key in ("", fresh_fairness_key("a", "cancelled-0")):
            own, other = await measure(outstanding, cancelled, key)
            arguments = (
                f"{cancelled} cancelled, {outstanding} slices queued each, {'fresh' if key else 'same'} key"
            )
            print(f"{arguments}: after {own} turns of others; a new tenant after {other}")


if __name__ == "__main__":
    asyncio.run(main())
