"""`python -m tests.ends.turns`: what a cancel or a pause costs its tenant, on one busy real queue."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from batchwright.contracts.execution import ModelRunResult, SliceRequest, SliceResult
from batchwright.contracts.names import CONTROL_QUEUE, inference_queue
from batchwright.temporal import DATA_CONVERTER
from tests.ends.scene import until
from tests.integration.clusters import started
from tests.workflows.house import POLICY, House
from tests.workflows.steps import FINISHED
from workflows.model_run import ModelRunWorkflow

_FAIR = (
    "useNewMatcher=true",
    "enableFairness=true",
    "numTaskqueueReadPartitions=1",
    "numTaskqueueWritePartitions=1",
)
_SLOTS, _TURN_SECONDS, _LOAD = 2, 0.1, 2_000
_CASES = ((32, 1), (32, 4), (8, 4))  # outstanding slices of a run, cancelled runs


class Queue:
    """One model's, whose every turn is written down as the run that had it."""

    def __init__(self, house: House, outstanding: int) -> None:
        self._house = house
        self._policy = POLICY.model_copy(
            update={"outstanding_slices": outstanding, "cancel_grace_seconds": 3.0}
        )
        self.turns: list[str] = []
        house.execution.behaviours["m"] = self._turn

    async def _turn(self, request: SliceRequest) -> SliceResult:
        self.turns.append(request.batch_id)
        activity.heartbeat()
        await asyncio.sleep(_TURN_SECONDS)
        return FINISHED

    async def start(
        self, tenant: str, name: str, slices: int
    ) -> WorkflowHandle[ModelRunWorkflow, ModelRunResult]:
        run = await self._house.model_run(slices, policy=self._policy)
        run = run.model_copy(update={"tenant": tenant, "batch_id": name})
        return await self._house.client.start_workflow(
            ModelRunWorkflow.run, run, id=name, task_queue=CONTROL_QUEUE
        )

    async def begun(self, name: str, since: int = 0) -> int:
        """How many turns there were before the run's first from the `since`th on."""

        async def has_begun() -> bool:
            return name in self.turns[since:]

        await until(has_begun)
        return self.turns.index(name, since)


@asynccontextmanager
async def _house() -> AsyncGenerator[House]:
    told = [word for value in _FAIR for word in ("--dynamic-config-value", f"matching.{value}")]
    async with await started(*told, data_converter=DATA_CONVERTER) as environment:
        house, client = House(environment), environment.client
        async with _control(client), _hands(client, house):
            yield house


def _control(client: Client) -> Worker:
    return Worker(client, task_queue=CONTROL_QUEUE, workflows=[ModelRunWorkflow])


def _hands(client: Client, house: House) -> Worker:
    slices = [house.execution.run_slice]
    return Worker(
        client, task_queue=inference_queue("m"), activities=slices, max_concurrent_activities=_SLOTS
    )


async def measure(outstanding: int, cancelled: int) -> tuple[int, int]:
    """Turns of others before the first one of that tenant's next batch, and of one that had none before."""
    async with _house() as house:
        queue = Queue(house, outstanding)
        await queue.start("load", "load", _LOAD)
        await queue.begun("load")
        runs = [await queue.start("a", f"cancelled-{number}", 100) for number in range(cancelled)]
        await queue.begun("cancelled-0")
        for run in runs:
            await run.signal(ModelRunWorkflow.stop)
        await asyncio.gather(*(run.result() for run in runs))
        before = len(queue.turns)
        await asyncio.gather(queue.start("a", "next", 5), queue.start("b", "other", 5))
        return await queue.begun("next") - before, await queue.begun("other") - before


async def measure_pause(outstanding: int) -> int:
    """Turns of others from a resume to the run's next one."""
    async with _house() as house:
        queue = Queue(house, outstanding)
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
        own, other = await measure(outstanding, cancelled)
        told = f"{cancelled} cancelled, {outstanding} slices queued each"
        print(f"{told}: after {own} turns of others; a new tenant after {other}")


if __name__ == "__main__":
    asyncio.run(main())
