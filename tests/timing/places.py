"""The places that show users why a batch waits, and a stack on which tests cause each waiting reason.

The places are the API, the output of `batchwright watch`, and Temporal's Web UI.
"""

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
from tests.constants import with_constants
from tests.e2e.batches import submit
from tests.e2e.fleet import Worker
from tests.integration.starter.commands import batchwright
from tests.timing.scene import Scene, parts, until

Lines = list[dict[str, object]]
PLACES = ("API", "`status`", "`watch`", "Web UI")
_SEEN_SECONDS = 300.0


@dataclass(frozen=True)
class Awaited:
    """A batch, and the file that contains the output of `batchwright watch` for it."""

    id: str
    tenant: str
    watched: Path


@dataclass
class Frozen:
    """Workers that are suspended with SIGSTOP. `thaw` lets them continue."""

    workers: list[Worker]

    def thaw(self) -> None:
        for worker in self.workers:
            worker.signal(signal.SIGCONT)


@dataclass
class ObservedStack(Scene):
    logs: Path
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])  # by role

    async def staff(self, *roles: str) -> None:
        """Start and kill workers so that exactly one worker of each of these roles runs."""
        for role in set(self.workers) - set(roles):
            await self.workers.pop(role).kill()
        for role in roles:
            if role not in self.workers:
                self.workers[role] = await self.fleet.start(role)

    @asynccontextmanager
    async def batch(self, lines: Lines) -> AsyncGenerator[Awaited]:
        """Context manager that submits a batch, runs `batchwright watch` for it, and yields it.

        The batch is cancelled at the end.
        """
        batch = await submit(self.client, lines)
        log = self.logs / f"{batch.id}.log"
        watching = await self._watch(batch.id, log)
        try:
            yield Awaited(batch.id, self.tenant, log)
        finally:
            with suppress(ProcessLookupError):
                watching.kill()
            await watching.wait()
            await self.backend.heal()
            with suppress(ConflictError):
                await self.client.batches.cancel(batch.id)

    async def _watch(self, batch_id: str, log: Path) -> Process:
        command = ("watch", batch_id, "--url", self.stack.now.api, "--tenant", self.tenant)
        with log.open("wb") as out:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "batchwright.starter", *command),
                env={**os.environ, "COLUMNS": "80"},
                stdout=out,
                stderr=out,
            )

    @contextmanager
    def frozen(self) -> Generator[Frozen]:
        """Context manager that suspends the worker that reads and writes files, and yields it.

        It continues at the end, or earlier if the test calls `thaw`.
        """
        suspended = Frozen([self.workers["io"]])
        for worker in suspended.workers:
            worker.signal(signal.SIGSTOP)
        try:
            yield suspended
        finally:
            suspended.thaw()

    @contextmanager
    def no_storage(self) -> Generator[None]:
        """Context manager that makes the storage unavailable, by a file in place of its directory."""
        objects = self.stack.objects
        aside = objects.with_name("aside")
        objects.rename(aside)
        objects.touch()
        try:
            yield
        finally:
            objects.unlink()
            aside.rename(objects)

    async def first_shown(self, batch: Awaited, reasons: tuple[str, ...], *, ui: bool) -> dict[str, float]:
        """Poll all places until each has shown one of the reasons.

        Return, for each place, the Unix time at which the poll began that first showed a reason.

        Args:
            ui: True to include the Temporal Web UI.

        Raises:
            TimeoutError: a place did not show any of the reasons.
        """
        looks = (self._api, self._status, self._watched, *([self._details] if ui else []))
        places = PLACES[: len(looks)]
        firsts = (self._first(name, batch, look, reasons) for name, look in zip(places, looks, strict=True))
        return dict(zip(places, await asyncio.gather(*firsts), strict=True))

    async def _first(
        self, name: str, batch: Awaited, look: Callable[[Awaited], Awaitable[str]], reasons: tuple[str, ...]
    ) -> float:
        shown, requested_at = "", 0.0

        async def shows() -> bool:
            nonlocal shown, requested_at
            requested_at = time.time()
            shown = await look(batch)
            return any(_packed(reason) in _packed(shown) for reason in reasons)

        try:
            await until(shows, _SEEN_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"{reasons!r} was not seen in {name}, which showed: {shown}") from None
        return requested_at

    async def _api(self, batch: Awaited) -> str:
        async with http_client(headers={"X-Tenant": batch.tenant}) as http:
            answer = await http.get(f"{self.stack.now.api}/v1/batches/{batch.id}")
        return json.dumps(answer.raise_for_status().json()["x_batchwright"]["waiting"])

    async def _status(self, batch: Awaited) -> str:
        command = ("status", batch.id, "--url", self.stack.now.api, "--tenant", batch.tenant)
        return "\n".join((await batchwright(*command)).stdout)

    async def _watched(self, batch: Awaited) -> str:
        return batch.watched.read_text()

    async def _details(self, batch: Awaited) -> str:
        """Return the current details of the workflow run, which the Temporal Web UI shows."""
        run = self.temporal.get_workflow_handle(batch.id)
        try:
            found = await run.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        except RPCError as error:
            return str(error)
        return found.current_details


def _packed(text: str) -> str:
    """Return `text` without spaces and table borders, because tables break lines anywhere."""
    return re.sub(r"[\s│]+", "", text)


@asynccontextmanager
async def observed_stack(logs: Path, **settings: str) -> AsyncGenerator[ObservedStack]:
    """Context manager that starts a stack without workers, yields it, and removes everything at the end."""
    async with parts(logs, {**with_constants(max_slice_lines=20), **settings}) as found:
        there = ObservedStack(found, logs)
        try:
            yield there
        finally:
            await there.client.close()
