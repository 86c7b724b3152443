"""`python -m tests.soak.reruns` (`make reruns`): measures retry and resume of a full-sized batch."""

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.starter.client import Client
from tests.e2e.backend import Backend
from tests.e2e.batches import CHAT
from tests.e2e.stack import MODELS, Stack, dev
from tests.soak.run import peaks_of, simulator

MOST_API_MIB, MOST_WORKER_MIB, MOST_ANSWER_SECONDS = 350.0, 256.0, 20.0
_LOOK_SECONDS = 0.1
_SETTINGS = {
    "BATCHWRIGHT_SLICE_SECONDS": "30",
    "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "30",
    "BATCHWRIGHT_MODEL_IN_FLIGHT": "64",
    "BATCHWRIGHT_LOG_LEVEL": "WARNING",
}


@dataclass
class Step:
    """The measurements of one batch.

    Attributes:
        answer: seconds until the call that creates the batch returned.
        ingesting: seconds until ingestion had ended.
        all: seconds until the batch had ended.
        api: peak memory of the API in MiB.
        worker: peak memory of the worker in MiB.
        requests: number of requests that the backend received.
    """

    name: str
    answer: float
    ingesting: float
    all: float
    api: float
    worker: float
    requests: int
    batch: BatchObject


@dataclass
class Measured:
    """All measurements. `before` is the memory of the API and of the worker in MiB before the first batch."""

    size: int
    before: tuple[float, float] = (0.0, 0.0)
    steps: list[Step] = field(default_factory=list[Step])

    def broken(self, lines: int) -> list[str]:
        first, resumed, failed, retried = self.steps
        settled = first.batch.request_counts.completed
        claims = {
            f"{step.name}: {step.batch.request_counts.completed} lines completed": (
                step.batch.request_counts.completed == lines
            )
            for step in (resumed, retried)
        }
        claims[f"{settled} lines settled before the cancel: nothing to take over"] = 0 < settled < lines
        claims["lines that had settled were sent again"] = resumed.requests <= lines - settled
        claims["not every line had failed"] = failed.batch.request_counts.failed == lines
        for step in self.steps:
            claims[f"{step.name}: the API took {step.api:.0f} MiB"] = step.api < MOST_API_MIB
            claims[f"{step.name}: the worker took {step.worker:.0f} MiB"] = step.worker < MOST_WORKER_MIB
            claims[f"{step.name}: answered after {step.answer:.1f} s"] = step.answer < MOST_ANSWER_SECONDS
        return [claim for claim, holds in claims.items() if not holds]


def write_input(path: Path, lines: int, line_bytes: int) -> int:
    """Write an input file of `lines` lines, and return its size in bytes.

    `line_bytes` is the size of a prompt.
    """
    text = "x" * line_bytes
    with path.open("w") as file:
        for number in range(lines):
            model = MODELS[number % len(MODELS)]
            body = f'{{"model":"{model}","messages":[{{"role":"user","content":"{number} {text}"}}]}}'
            file.write(f'{{"custom_id":"line-{number}","method":"POST","url":"{CHAT}","body":{body}}}\n')
        return file.tell()


class Bench:
    def __init__(self, stack: Stack, backend: Backend, client: Client, measured: Measured) -> None:
        self._stack, self._backend, self._client, self._measured = stack, backend, client, measured

    async def step(
        self, name: str, make: Callable[[], BatchObject], cancel_at: int | None = None
    ) -> BatchObject:
        """Create a batch with `make`, wait until it has ended, record its measurements, and return it.

        Args:
            cancel_at: number of completed lines at which the batch is cancelled; None to let it complete.
        """
        now = self._stack.now.pids
        await self._backend.forget()
        with peaks_of([*now.api, *now.worker]) as peaks:
            began = time.monotonic()
            batch = await asyncio.to_thread(make)
            answer = time.monotonic() - began
            ingesting = 0.0
            while not batch.status.is_terminal:
                await asyncio.sleep(_LOOK_SECONDS)
                batch = await asyncio.to_thread(self._client.batch, batch.id)
                if batch.status == "validating":
                    ingesting = time.monotonic() - began - answer
                if cancel_at is not None and batch.request_counts.completed >= cancel_at:
                    cancel_at = None
                    await asyncio.to_thread(self._client.cancel, batch.id)
            took = time.monotonic() - began
        requests = (await self._backend.ledger(entries=False)).requests
        api, worker = peaks
        self._measured.steps.append(Step(name, answer, ingesting, took, api, worker, requests, batch))
        return batch


async def reruns(lines: int, line_bytes: int) -> Measured:
    """Start a stack, measure retry and resume on it, and return the measurements.

    Its files are deleted at the end.
    """
    with tempfile.TemporaryDirectory(prefix="batchwright-reruns-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "input.jsonl"
        measured = Measured(write_input(path, lines, line_bytes))
        with (
            simulator() as url,
            dev("--backend", url, data=Path(folder) / "data", **_SETTINGS) as stack,
            Client(stack.now.api) as client,
        ):
            now = stack.now.pids
            with peaks_of([*now.api, *now.worker]) as before:
                await asyncio.sleep(1.0)
            measured.before = before[0], before[1]
            await _measure(Bench(stack, Backend(url), client, measured), client, Backend(url), path, lines)
    return measured


async def _measure(bench: Bench, client: Client, backend: Backend, path: Path, lines: int) -> None:
    with path.open("rb") as file:
        uploaded = client.upload(file, path.name)

    def create() -> BatchObject:
        return client.create(file_id=uploaded.id, endpoint=CHAT, window="24h", metadata=None)

    stopped = await bench.step("cancelled half way", create, cancel_at=lines // 2)
    await bench.step("resumed", lambda: client.resume(stopped.id))
    await backend.faults(kind="400", rate=1.0)
    failed = await bench.step("every line fails", create)
    await backend.heal()
    await bench.step("retried", lambda: client.retry(failed.id))


def table(measured: Measured, lines: int) -> Table:
    found = Table(title=f"{lines:,} lines, {measured.size / 1024 / 1024:.0f} MiB; seconds, MiB")
    for column in ("", "answered after", "ingested in", "all", "requests", "API", "worker"):
        found.add_column(column, justify="right" if column else "left")
    api, worker = measured.before
    found.add_row("nothing yet", "", "", "", "", f"{api:.0f}", f"{worker:.0f}")
    for step in measured.steps:
        numbers = (f"{step.answer:.1f}", f"{step.ingesting:.1f}", f"{step.all:.1f}", f"{step.requests:,}")
        found.add_row(step.name, *numbers, f"{step.api:.0f}", f"{step.worker:.0f}")
    return found


def run(
    lines: Annotated[int, typer.Option(min=10, help="Of the batch.")] = 50_000,
    line_bytes: Annotated[int, typer.Option(min=0, help="Of a line's prompt.")] = 2_000,
) -> None:
    """Cancel a full-sized batch half-way and resume it.

    Let all lines of another batch fail, and retry that batch.
    """
    measured = asyncio.run(reruns(lines, line_bytes))
    console = Console(width=140)
    console.print(table(measured, lines))
    broken = measured.broken(lines)
    for sentence in broken:
        console.print(f"BROKEN: {sentence}", markup=False)
    raise typer.Exit(1 if broken else 0)


if __name__ == "__main__":
    typer.run(run)
