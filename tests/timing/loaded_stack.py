"""A stack under full load. Scenarios end batches on it, and measure when these batches have ended."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from openai import AsyncOpenAI
from openai.types import Batch
from temporalio.api.enums.v1 import EventType
from temporalio.service import RPCError

from batchwright.contracts.temporal_names import model_run_id
from batchwright.rules.ids import request_id, safe_name
from tests.constants import with_constants
from tests.e2e.batches import ENDED, chat_lines, check_conservation, submit
from tests.e2e.fleet import Worker
from tests.e2e.stack import MODELS
from tests.timing.scene import Scene, parts, until

Lines = list[dict[str, object]]
ANSWER_SECONDS = 0.5
_MORE = {
    "BATCHWRIGHT_MIN_WINDOW_SECONDS": "1",
    **with_constants(max_slice_lines=20),  # so that each batch has more slices than there are slots
}


class WindowTooShort(Exception):
    """An exception: the completion window closed before the scenario had prepared the batch."""


@dataclass
class End:
    """The end of a batch whose files were found to have each line once. Times are Unix seconds.

    Attributes:
        seen_at: time at which the final status was seen.
        last_request_at: time at which the backend received the last request of the batch; None if it received
            none.
        finalizing: seconds from the last order to write files to the end.
        late_steps: number of workflow tasks that exceeded Temporal's timeouts: 5 s until the worker with the
            workflow in its cache takes the task, 10 s until it is done.
    """

    batch: Batch
    seen_at: float  # in its last status
    last_request_at: float | None  # None: no line of it reached the backend
    finalizing: float  # seconds from when its files were ordered the last time
    late_steps: int  # of its workflows, that were not taken or done in time

    @property
    def settled(self) -> int:
        """Number of lines that a response of the backend completed."""
        counts = self.batch.request_counts
        return counts.completed if counts else 0


@dataclass
class LoadedStack(Scene):
    """A stack whose workers are all kept busy by a large batch of another tenant, called the load.

    Attributes:
        io: worker that runs workflows, and reads and writes files.
        workers: workers that send requests.
        held: models whose requests the backend holds during a scenario. If there is one, no batch can end by
            itself.
    """

    load_lines: int  # of each model
    held: Sequence[str] = ()
    io: Worker | None = None
    workers: list[Worker] = field(default_factory=list[Worker])
    _load: str | None = None

    async def ready(self) -> None:
        """Prepare the next scenario: start missing workers, and submit a new load if the last one ended."""
        await super().ready()
        for model in self.held:
            await self.backend.faults(kind="hold", model=model)
        await self.backend.faults(kind="slow", seconds=ANSWER_SECONDS, rate=1.0)
        await self.start_io()
        while len(self.workers) < 2:
            self.workers.append(await self.fleet.start("inference"))
        async with self.stack.client("load") as client:
            if self._load is None or (await client.batches.retrieve(self._load)).status in ENDED:
                lines = chat_lines(MODELS, each=self.load_lines)
                self._load = (await submit(client, lines)).id
            await until(lambda: _is(client, self._load, "in_progress"))
        await self.backend.forget()

    async def start_io(self) -> None:
        if self.io is None:
            self.io = await self.fleet.start("control,io")

    async def lose_io(self) -> None:
        if self.io is not None:
            await self.io.kill()
        self.io = None

    async def kill_workers(self) -> None:
        """Kill the workers that send requests, and cancel the load.

        The load cannot be used again, because after a crash its lines are sent slowly, one after another.
        """
        await asyncio.gather(*(worker.kill() for worker in self.workers))
        self.workers = []
        await self._unload()

    async def _unload(self) -> str | None:
        """Cancel the load, and return the id of its batch; None if there was no load."""
        load, self._load = self._load, None
        if load is not None:
            async with self.stack.client("load") as client:
                await client.batches.cancel(load)
        return load

    async def stop_workers(self) -> None:
        """Stop the workers that send requests with SIGTERM, and wait for their end.

        They return their slices.
        """
        for worker in self.workers:
            worker.signal(signal.SIGTERM)
        await asyncio.gather(*(worker.process.wait() for worker in self.workers))
        self.workers = []

    async def status(self, batch: Batch) -> str:
        return (await self.client.batches.retrieve(batch.id)).status

    async def settled(self, batch: Batch, least: int = 1) -> None:
        async def counted() -> bool:
            counts = (await self.client.batches.retrieve(batch.id)).request_counts
            return counts is not None and counts.completed >= least

        await until(counted)

    async def settled_in_time(self, batch: Batch) -> None:
        """Wait until a line of the batch has a result.

        Raises:
            WindowTooShort: the batch ended before.
        """

        async def has_result_or_ended() -> bool:
            found = await self.client.batches.retrieve(batch.id)
            counts = found.request_counts
            return found.status in ENDED or (counts is not None and counts.completed > 0)

        await until(has_result_or_ended)
        if await self.status(batch) in ENDED:
            raise WindowTooShort(batch.completion_window)

    async def never_answered(self) -> None:
        """Let the backend accept all requests from now on without ever answering. First cancel the load.

        The load's requests would otherwise occupy all slots forever, and the scenario's batch needs slots.
        The workers must be replaced afterwards.
        """
        load = await self._unload()
        async with self.stack.client("load") as client:
            await until(lambda: _is(client, load, "cancelled"))
        await self.backend.heal()
        await self.backend.faults(kind="hang", rate=1.0)

    async def end(self, batch: Batch, lines: Lines) -> End:
        """Wait until the batch has ended, check that no line is lost, and return how it ended.

        Raises:
            AssertionError: a line is lost or duplicated.
            TimeoutError: the batch did not end in time.
        """
        await until(lambda: self._has_ended(batch))
        seen_at = time.time()
        done = await self.client.batches.retrieve(batch.id)
        if done.output_file_id or done.error_file_id:
            await check_conservation(self.client, done, lines)
        mine = requests_of(batch, lines)
        request_times = [
            entry.last_request_at for entry in (await self.backend.ledger()).entries if entry.key in mine
        ]
        files_ordered_at = await self._files_ordered_at(batch)
        finalizing = seen_at - files_ordered_at if files_ordered_at else 0.0
        return End(done, seen_at, max(request_times, default=None), finalizing, await self._late_steps(batch))

    async def _has_ended(self, batch: Batch) -> bool:
        return await self.status(batch) in ENDED

    async def _late_steps(self, batch: Batch) -> int:
        runs = [batch.id, *(model_run_id(batch.id, safe_name(model)) for model in MODELS)]
        found = 0
        for run in runs:
            with suppress(RPCError):  # it was never started
                async for event in self.temporal.get_workflow_handle(run).fetch_history_events():
                    found += event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT
        return found

    async def _files_ordered_at(self, batch: Batch) -> float:
        """Return the Unix time at which the workflow last scheduled the activity that writes files; 0.0 if it
        never did.
        """
        at = 0.0
        async for event in self.temporal.get_workflow_handle(batch.id).fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                name = event.activity_task_scheduled_event_attributes.activity_type.name
                at = event.event_time.ToMicroseconds() / 1e6 if name == "finalize" else at
        return at


def requests_of(batch: Batch, lines: Lines) -> set[str]:
    """Return the request ids of a batch's lines, as the backend receives them.

    They are computed from the lines' offsets in the input.
    """
    sizes = [len(json.dumps(line)) + 1 for line in lines]
    return {request_id(batch.id, offset) for offset in accumulate(sizes[:-1], initial=0)}


async def _is(client: AsyncOpenAI, batch_id: str | None, status: str) -> bool:
    assert batch_id is not None
    return (await client.batches.retrieve(batch_id)).status == status


@asynccontextmanager
async def loaded_stack(
    logs: Path, load_lines: int, held: Sequence[str] = (), **settings: str
) -> AsyncGenerator[LoadedStack]:
    """Context manager that starts a stack without workers and yields it. At the end, it removes everything.

    Args:
        load_lines: number of lines of the load for each model.
        held: models whose requests the backend holds during each scenario.
    """
    async with parts(logs, {**_MORE, **settings}) as found:
        there = LoadedStack(found, load_lines, held)
        try:
            yield there
        finally:
            await there.client.close()
