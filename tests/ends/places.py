"""Where one sees why a batch waits, and a stack in which that can be brought about."""

import asyncio
import json
import os
import re
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from openai import ConflictError
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.service import RPCError

from tests.clients import http_client
from tests.e2e.batches import submit
from tests.e2e.fleet import Worker
from tests.ends.scene import Scene, parts, until
from tests.integration.commands import batchwright

Lines = list[dict[str, object]]
PLACES = ("API", "`status`", "`watch`", "Web UI")
_SEEN_SECONDS = 300.0


@dataclass(frozen=True)
class Awaited:
    """A batch, and what `batchwright watch` has said of it; None: nobody watches."""

    id: str
    tenant: str
    watched: Path | None


@dataclass
class Frozen:
    """Workers under SIGSTOP."""

    workers: list[Worker]

    def thaw(self) -> None:
        for worker in self.workers:
            worker.signal(signal.SIGCONT)


@dataclass
class Place(Scene):
    logs: Path
    hands: dict[str, Worker] = field(default_factory=dict[str, Worker])  # by role

    async def staff(self, *roles: str) -> None:
        """Exactly these workers, one of each role; who is too many is killed."""
        for role in set(self.hands) - set(roles):
            await self.hands.pop(role).kill()
        for role in roles:
            if role not in self.hands:
                self.hands[role] = await self.fleet.start(role)

    @asynccontextmanager
    async def batch(self, lines: Lines, *, is_watched: bool = True) -> AsyncGenerator[Awaited]:
        """Cancelled at the end."""
        made = await submit(self.client, lines)
        log = self.logs / f"{made.id}.log"
        watching = await self._watch(made.id, log) if is_watched else None
        try:
            yield Awaited(made.id, self.tenant, log if is_watched else None)
        finally:
            if watching is not None:
                with suppress(ProcessLookupError):
                    watching.kill()
                await watching.wait()
            await self.backend.heal()
            with suppress(ConflictError):
                await self.client.batches.cancel(made.id)

    async def _watch(self, batch_id: str, log: Path) -> Process:
        told = ("watch", batch_id, "--url", self.stack.now.api, "--tenant", self.tenant)
        with log.open("wb") as out:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "starter", *told),
                env={**os.environ, "COLUMNS": "80"},
                stdout=out,
                stderr=out,
            )

    async def begun(self, batch: Awaited) -> None:
        async def has_begun() -> bool:
            return (await self.client.batches.retrieve(batch.id)).status == "in_progress"

        await until(has_begun)

    @contextmanager
    def frozen(self) -> Generator[Frozen]:
        """Whoever reads and writes files stands still until it is thawed."""
        held = Frozen([self.hands["io"]])
        for worker in held.workers:
            worker.signal(signal.SIGSTOP)
        try:
            yield held
        finally:
            held.thaw()

    @contextmanager
    def no_storage(self) -> Generator[None]:
        """Something else lies where the storage's directory was."""
        objects = self.stack.objects
        aside = objects.with_name("aside")
        objects.rename(aside)
        objects.touch()
        try:
            yield
        finally:
            objects.unlink()
            aside.rename(objects)

    async def seen(self, batch: Awaited, reasons: tuple[str, ...], *, ui: bool) -> dict[str, float]:
        """When the first look at each place began that saw one of the reasons. Raises TimeoutError."""
        looks = (self._api, self._status, self._watched, *([self._details] if ui else []))
        places = PLACES[: len(looks)]
        firsts = (self._first(name, batch, look, reasons) for name, look in zip(places, looks, strict=True))
        return dict(zip(places, await asyncio.gather(*firsts), strict=True))

    async def _first(
        self, name: str, batch: Awaited, look: Callable[[Awaited], Awaitable[str]], reasons: tuple[str, ...]
    ) -> float:
        said, asked_at = "", 0.0

        async def shows() -> bool:
            nonlocal said, asked_at
            asked_at = time.time()
            said = await look(batch)
            return any(_packed(reason) in _packed(said) for reason in reasons)

        try:
            await until(shows, _SEEN_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"{reasons!r} was not seen in {name}, which said: {said}") from None
        return asked_at

    async def _api(self, batch: Awaited) -> str:
        async with http_client(headers={"X-Tenant": batch.tenant}) as http:
            answer = await http.get(f"{self.stack.now.api}/v1/batches/{batch.id}")
        return json.dumps(answer.raise_for_status().json()["x_batchwright"]["waiting"])

    async def _status(self, batch: Awaited) -> str:
        told = ("status", batch.id, "--url", self.stack.now.api, "--tenant", batch.tenant)
        return "\n".join((await batchwright(*told)).said)

    async def _watched(self, batch: Awaited) -> str:
        assert batch.watched is not None
        return batch.watched.read_text()

    async def _details(self, batch: Awaited) -> str:
        """The run's current details, as the Web UI shows them."""
        run = self.temporal.get_workflow_handle(batch.id)
        try:
            found = await run.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        except RPCError as error:
            return str(error)
        return found.current_details


def _packed(text: str) -> str:
    """Tables break lines anywhere."""
    return re.sub(r"[\s│]+", "", text)


@asynccontextmanager
async def place(logs: Path, **settings: str) -> AsyncGenerator[Place]:
    """On ports and in directories of its own, gone at the end."""
    async with parts(logs, {"BATCHWRIGHT_SLICE_LINES": "20", **settings}) as found:
        there = Place(found, logs)
        try:
            yield there
        finally:
            await there.client.close()
