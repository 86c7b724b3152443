"""Scenarios in which a batch waits, one for each reason, with the text that must be shown."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from batchwright.settings import load
from batchwright.starter.client import Client
from batchwright.starter.operator_client import OperatorClient
from tests.e2e.backend import Hold
from tests.e2e.batches import chat_lines, settled
from tests.e2e.stack import MODELS
from tests.timing.places import Awaited, ObservedStack
from tests.timing.scene import until

MODEL = MODELS[0]
_FEW = chat_lines([MODEL], each=40)
_MANY = 600
_NOBODY = "no worker polls its queue"
_STEERS, _WRITES, _ASKS = "control", "io", "inference"


class Wait(NamedTuple):
    """A batch that waits, and the reason that must be shown.

    Attributes:
        reasons: possible texts of the reason. One of them must be shown; which one depends on the slice that
            reports last.
        since: Unix time from which the batch waits for this reason.
        ui: True if the Temporal Web UI must show the reason, too. False if no worker runs that could report
            it to the workflow.
    """

    batch: Awaited
    reasons: tuple[str, ...]
    since: float
    ui: bool = True


Scenario = Callable[[ObservedStack], AbstractAsyncContextManager[Wait]]


@asynccontextmanager
async def no_worker_at_all(stack: ObservedStack) -> AsyncGenerator[Wait]:
    await stack.staff()
    async with stack.batch(_FEW) as batch:
        yield Wait(batch, (f"{_NOBODY} control",), time.time(), ui=False)


@asynccontextmanager
async def no_worker_reads_files(stack: ObservedStack) -> AsyncGenerator[Wait]:
    await stack.staff(_STEERS)
    async with stack.batch(_FEW) as batch:
        yield Wait(batch, (f"{_NOBODY} io",), time.time())


@asynccontextmanager
async def no_worker_for_its_model(stack: ObservedStack) -> AsyncGenerator[Wait]:
    await stack.staff(_STEERS, _WRITES)
    async with stack.batch(_FEW) as batch:
        yield Wait(batch, (f"{_NOBODY} inference.llama_3_1_8b",), time.time())


@asynccontextmanager
async def the_workers_of_its_model_are_killed(stack: ObservedStack) -> AsyncGenerator[Wait]:
    async with _running(stack) as (batch, _):
        await stack.staff(_STEERS, _WRITES)
        yield Wait(batch, (f"{_NOBODY} inference.llama_3_1_8b",), time.time())


@asynccontextmanager
async def the_backend_answers_503(stack: ObservedStack) -> AsyncGenerator[Wait]:
    async with _broken_backend(
        stack, "the backend accepts no requests now: it answered 503", kind="503"
    ) as wait:
        yield wait


@asynccontextmanager
async def the_backend_is_gone(stack: ObservedStack) -> AsyncGenerator[Wait]:
    async with _broken_backend(stack, "the backend accepts no requests now: ", kind="down") as wait:
        yield wait


@asynccontextmanager
async def the_backend_does_not_know_our_key(stack: ObservedStack) -> AsyncGenerator[Wait]:
    async with _broken_backend(stack, "the backend rejects Batchwright's API key (401)", kind="401") as wait:
        yield wait


@asynccontextmanager
async def the_backend_refuses_our_key(stack: ObservedStack) -> AsyncGenerator[Wait]:
    async with _broken_backend(stack, "the backend forbids Batchwright's API key", kind="403") as wait:
        yield wait


@asynccontextmanager
async def held_by_a_rate(stack: ObservedStack) -> AsyncGenerator[Wait]:
    """Let a rate limit slow down the batch.

    The worker is started after the change, because running workers apply it only later.
    """
    await stack.staff(_STEERS, _WRITES)
    await asyncio.to_thread(_set_rate, stack, 0.05)
    await stack.staff(_STEERS, _WRITES, _ASKS)
    try:
        async with stack.batch(chat_lines([MODEL], each=_MANY)) as batch:
            yield Wait(batch, ("limited by a rate of 0.05 requests per second",), time.time())
    finally:
        await asyncio.to_thread(_set_rate, stack, None)


@asynccontextmanager
async def behind_others(stack: ObservedStack) -> AsyncGenerator[Wait]:
    """Let an earlier batch of the same tenant use all permits until the test ends.

    The later batch is smaller, so the worker may already have taken its slice. Then this slice runs without a
    permit.
    """
    async with _all_permits_used(stack), stack.batch(_FEW) as batch:
        running = "its running slices have received no response recently"
        yield Wait(batch, ("behind ", running), time.time())


@asynccontextmanager
async def alone_with_a_slow_backend(stack: ObservedStack) -> AsyncGenerator[Wait]:
    """Let the batch's own requests use all permits, while the backend does not answer."""
    async with _all_permits_used(stack) as batch:
        yield Wait(batch, ("its running slices have received no response recently",), time.time())


@asynccontextmanager
async def paused(stack: ObservedStack) -> AsyncGenerator[Wait]:
    async with _running(stack) as (batch, _):
        await stack.client.post(f"/batches/{batch.id}/x/pause", cast_to=object)
        yield Wait(batch, ("paused",), time.time())


@asynccontextmanager
async def its_input_cannot_be_read(stack: ObservedStack) -> AsyncGenerator[Wait]:
    """Make the storage unavailable before the batch is ingested."""
    await stack.staff(_STEERS, _WRITES)
    async with AsyncExitStack() as until_over:
        suspended = until_over.enter_context(stack.frozen())
        batch = await until_over.enter_async_context(stack.batch(_FEW))
        with stack.no_storage():
            suspended.thaw()
            yield Wait(batch, ("its input cannot be prepared now: ",), time.time())


@asynccontextmanager
async def its_results_cannot_be_stored(stack: ObservedStack) -> AsyncGenerator[Wait]:
    async with _running(stack) as (batch, hold):
        with stack.no_storage():
            await hold.release()
            yield Wait(
                batch,
                (
                    "its results cannot be stored now",
                    "object storage or the database does not answer the worker",
                ),
                time.time(),
            )


@asynccontextmanager
async def its_files_cannot_be_written(stack: ObservedStack) -> AsyncGenerator[Wait]:
    """Make the storage unavailable when all lines have results, before the files are written."""
    await stack.staff(_STEERS, _WRITES, _ASKS)
    async with stack.backend.hold() as hold, stack.batch(_FEW) as batch:
        await hold.reached()  # so the worker that is suspended now has nothing more to do for the lines
        with stack.frozen() as suspended:
            await hold.release()
            await settled(stack.client, batch.id, len(_FEW))
            with stack.no_storage():
                suspended.thaw()
                yield Wait(batch, ("its files cannot be written now: ",), time.time())


REASONS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        no_worker_at_all,
        no_worker_reads_files,
        no_worker_for_its_model,
        the_workers_of_its_model_are_killed,
        the_backend_answers_503,
        the_backend_is_gone,
        the_backend_does_not_know_our_key,
        the_backend_refuses_our_key,
        held_by_a_rate,
        behind_others,
        alone_with_a_slow_backend,
        paused,
        its_input_cannot_be_read,
        its_results_cannot_be_stored,
        its_files_cannot_be_written,
    )
}


@asynccontextmanager
async def _broken_backend(stack: ObservedStack, reason: str, kind: str) -> AsyncGenerator[Wait]:
    """Let the backend answer the first requests of a batch, and fail all others in the way `kind`.

    Yield the expected reason.
    """
    async with _running(stack) as (batch, hold):
        await stack.backend.faults(kind=kind, rate=1.0)
        broken_at = time.time()
        await hold.release()
        await settled(stack.client, batch.id, 1)
        yield Wait(batch, (reason,), broken_at)


@asynccontextmanager
async def _running(stack: ObservedStack, least: int = 1) -> AsyncGenerator[tuple[Awaited, Hold]]:
    """Start all workers and submit a batch. Yield it when `least` of its requests are at the backend.

    The backend holds these requests until the test releases them, so that the batch cannot end earlier.
    """
    await stack.staff(_STEERS, _WRITES, _ASKS)
    lines = chat_lines([MODEL], each=_MANY, user=stack.tenant)

    async def are_sent() -> bool:
        entries = (await stack.backend.ledger()).entries
        return sum(entry.user == stack.tenant for entry in entries) >= least

    async with stack.backend.hold() as hold, stack.batch(lines) as batch:
        await until(are_sent)
        yield batch, hold


@asynccontextmanager
async def _all_permits_used(stack: ObservedStack) -> AsyncGenerator[Awaited]:
    """Submit a batch whose requests use all permits of a new worker, and yield it.

    The worker must be new: a worker that has just received many responses might take all slices of the batch,
    so that no slice waits.
    """
    await stack.staff(_STEERS, _WRITES)
    async with _running(stack, load().model_in_flight) as (batch, _):
        yield batch


def _set_rate(stack: ObservedStack, rate: float | None) -> None:
    with Client(stack.stack.now.api) as client:
        if rate is None:
            OperatorClient(client).clear_rate(MODEL)
        else:
            OperatorClient(client).set_rate(MODEL, rate)
