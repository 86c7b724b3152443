"""A loaded stack in which batches are ended, and what each of them says afterwards about its end."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from openai import AsyncOpenAI
from openai.types import Batch
from temporalio.api.enums.v1 import EventType
from temporalio.service import RPCError

from batchwright.contracts.names import model_run_id
from batchwright.rules.ids import request_id, safe_name
from tests.e2e.batches import ENDED, chat_lines, check_conservation, submit
from tests.e2e.fleet import Worker
from tests.e2e.stack import MODELS
from tests.ends.scene import Scene, parts, until

Lines = list[dict[str, object]]
ANSWER_SECONDS = 0.5
_MORE = {
    "BATCHWRIGHT_MIN_WINDOW_SECONDS": "1",
    "BATCHWRIGHT_SLICE_LINES": "20",  # so that each batch has more slices than there are slots
}


@dataclass
class End:
    """Of a batch, whose lines were all found in its files once. Times are Unix seconds by one clock."""

    batch: Batch
    seen_at: float  # in its last status
    last_asked_at: float | None  # None: no line of it reached the backend
    finalizing: float  # seconds from when its files were ordered the last time
    late_steps: int  # of its workflows, that were not taken or done within Temporal's ten seconds

    @property
    def settled(self) -> int:
        """Lines that the backend's answers decided."""
        counts = self.batch.request_counts
        return counts.completed if counts else 0


@dataclass
class House(Scene):
    """`io` steers and writes files, `hands` ask the backend."""

    load_lines: int  # of each model
    io: Worker | None = None
    hands: list[Worker] = field(default_factory=list[Worker])
    _load: str | None = None

    async def ready(self) -> None:
        """Every worker is there, and a batch of another tenant has more to do than they can."""
        await super().ready()
        await self.backend.faults(kind="slow", seconds=ANSWER_SECONDS, rate=1.0)
        await self.start_io()
        while len(self.hands) < 2:
            self.hands.append(await self.fleet.start("inference"))
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

    async def lose_hands(self) -> None:
        """They are killed, and the load ends with them: whoever takes up a dead worker's lines is careful."""
        await asyncio.gather(*(hand.kill() for hand in self.hands))
        self.hands = []
        await self._unload()

    async def _unload(self) -> str | None:
        """The batch that was the load."""
        load, self._load = self._load, None
        if load is not None:
            async with self.stack.client("load") as client:
                await client.batches.cancel(load)
        return load

    async def dismiss_hands(self) -> None:
        """They hand their slices back."""
        for hand in self.hands:
            hand.signal(signal.SIGTERM)
        await asyncio.gather(*(hand.process.wait() for hand in self.hands))
        self.hands = []

    async def status(self, batch: Batch) -> str:
        return (await self.client.batches.retrieve(batch.id)).status

    async def settled(self, batch: Batch, least: int = 1) -> None:
        async def counted() -> bool:
            counts = (await self.client.batches.retrieve(batch.id)).request_counts
            return counts is not None and counts.completed >= least

        await until(counted)

    async def never_answered(self) -> None:
        """The backend holds what it is asked from now on; who asked is of no more use afterwards.

        Without the load, which would take all there is room for: the scenario's own batch does.
        """
        load = await self._unload()
        async with self.stack.client("load") as client:
            await until(lambda: _is(client, load, "cancelled"))
        await self.backend.heal()
        await self.backend.faults(kind="hang", rate=1.0)

    async def end(self, batch: Batch, lines: Lines) -> End:
        """Waits for it, and checks that nothing of it is lost. Raises AssertionError, TimeoutError."""
        await until(lambda: self._has_ended(batch))
        seen_at = time.time()
        done = await self.client.batches.retrieve(batch.id)
        if done.output_file_id or done.error_file_id:
            await check_conservation(self.client, done, lines)
        mine = requests_of(batch, lines)
        asked = [entry.last_asked_at for entry in (await self.backend.ledger()).entries if entry.key in mine]
        files_ordered_at = await self._files_ordered_at(batch)
        finalizing = seen_at - files_ordered_at if files_ordered_at else 0.0
        return End(done, seen_at, max(asked, default=None), finalizing, await self._late_steps(batch))

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
        """The last time; 0.0: not at all."""
        at = 0.0
        async for event in self.temporal.get_workflow_handle(batch.id).fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                name = event.activity_task_scheduled_event_attributes.activity_type.name
                at = event.event_time.ToMicroseconds() / 1e6 if name == "finalize" else at
        return at


def requests_of(batch: Batch, lines: Lines) -> set[str]:
    """The ids under which the backend hears of the lines, as `submit` wrote them."""
    sizes = [len(json.dumps(line)) + 1 for line in lines]
    return {request_id(batch.id, offset) for offset in accumulate(sizes[:-1], initial=0)}


async def _is(client: AsyncOpenAI, batch_id: str | None, status: str) -> bool:
    assert batch_id is not None
    return (await client.batches.retrieve(batch_id)).status == status


@asynccontextmanager
async def house(logs: Path, load_lines: int, **settings: str) -> AsyncGenerator[House]:
    """On ports and in directories of its own, gone at the end."""
    async with parts(logs, {**_MORE, **settings}) as found:
        there = House(found, load_lines)
        try:
            yield there
        finally:
            await there.client.close()
