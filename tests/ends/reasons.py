"""What a batch can wait for, each brought about on real servers: the reason that is to be seen."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from starter.client import Client
from tests.e2e.batches import chat_lines, settled
from tests.e2e.stack import MODELS
from tests.ends.places import Awaited, Place

MODEL = MODELS[0]
_FEW = chat_lines([MODEL], each=40)
_MANY = chat_lines([MODEL], each=600)
_NOBODY = "no worker polls its queue"
_STEERS, _WRITES, _ASKS = "control", "io", "inference"


class Wait(NamedTuple):
    """`since`: when it began to be so, in Unix seconds. `ui`: whether some worker can tell the run of it.

    One of the `reasons`, each as true as the others: which slice told last is chance.
    """

    batch: Awaited
    reasons: tuple[str, ...]
    since: float
    ui: bool = True


Scenario = Callable[[Place], AbstractAsyncContextManager[Wait]]


@asynccontextmanager
async def no_worker_at_all(place: Place) -> AsyncGenerator[Wait]:
    await place.staff()
    async with place.batch(_FEW) as batch:
        yield Wait(batch, (f"{_NOBODY} control",), time.time(), ui=False)


@asynccontextmanager
async def no_worker_reads_files(place: Place) -> AsyncGenerator[Wait]:
    await place.staff(_STEERS)
    async with place.batch(_FEW) as batch:
        yield Wait(batch, (f"{_NOBODY} io",), time.time())


@asynccontextmanager
async def no_worker_for_its_model(place: Place) -> AsyncGenerator[Wait]:
    await place.staff(_STEERS, _WRITES)
    async with place.batch(_FEW) as batch:
        yield Wait(batch, (f"{_NOBODY} inference.llama_3_1_8b",), time.time())


@asynccontextmanager
async def the_workers_of_its_model_are_killed(place: Place) -> AsyncGenerator[Wait]:
    await place.staff(_STEERS, _WRITES, _ASKS)
    await place.backend.faults(kind="slow", seconds=0.5, rate=1.0)
    async with place.batch(_MANY) as batch:
        await settled(place.client, batch.id, 1)
        await place.staff(_STEERS, _WRITES)
        yield Wait(batch, (f"{_NOBODY} inference.llama_3_1_8b",), time.time())


@asynccontextmanager
async def the_backend_answers_503(place: Place) -> AsyncGenerator[Wait]:
    async with _broken_backend(place, "the backend takes nothing now: it answered 503", kind="503") as wait:
        yield wait


@asynccontextmanager
async def the_backend_is_gone(place: Place) -> AsyncGenerator[Wait]:
    async with _broken_backend(place, "the backend takes nothing now: ", kind="down") as wait:
        yield wait


@asynccontextmanager
async def the_backend_does_not_know_our_key(place: Place) -> AsyncGenerator[Wait]:
    async with _broken_backend(place, "the backend does not know our key (401)", kind="401") as wait:
        yield wait


@asynccontextmanager
async def the_backend_refuses_our_key(place: Place) -> AsyncGenerator[Wait]:
    async with _broken_backend(place, "the backend knows our key and refuses it", kind="403") as wait:
        yield wait


@asynccontextmanager
async def held_by_a_rate(place: Place) -> AsyncGenerator[Wait]:
    """The worker that asks is started afterwards: others follow a new rate within seconds."""
    await place.staff(_STEERS, _WRITES)
    await asyncio.to_thread(_set_rate, place, 0.05)
    await place.staff(_STEERS, _WRITES, _ASKS)
    try:
        async with place.batch(_MANY) as batch:
            yield Wait(batch, ("held by a rate of 0.05 requests a second",), time.time())
    finally:
        await asyncio.to_thread(_set_rate, place, None)


@asynccontextmanager
async def behind_others(place: Place) -> AsyncGenerator[Wait]:
    """A batch of the same tenant, which is served in order, has every slot."""
    await place.staff(_STEERS, _WRITES, _ASKS)
    await place.backend.faults(kind="slow", seconds=20.0, rate=1.0)
    async with place.batch(_MANY, is_watched=False), place.batch(_FEW) as batch:
        yield Wait(batch, ("behind ",), time.time())


@asynccontextmanager
async def alone_with_a_slow_backend(place: Place) -> AsyncGenerator[Wait]:
    """Its own slices have every slot."""
    await place.staff(_STEERS, _WRITES, _ASKS)
    await place.backend.faults(kind="slow", seconds=40.0, rate=1.0)
    async with place.batch(_MANY) as batch:
        yield Wait(batch, ("its slices that run have had no answer lately",), time.time())


@asynccontextmanager
async def paused(place: Place) -> AsyncGenerator[Wait]:
    await place.staff(_STEERS, _WRITES, _ASKS)
    await place.backend.faults(kind="slow", seconds=0.5, rate=1.0)
    async with place.batch(_MANY) as batch:
        await settled(place.client, batch.id, 1)
        await place.client.post(f"/batches/{batch.id}/x/pause", cast_to=object)
        yield Wait(batch, ("paused",), time.time())


@asynccontextmanager
async def its_input_cannot_be_read(place: Place) -> AsyncGenerator[Wait]:
    """The storage's directory is not mounted when the batch is made."""
    await place.staff(_STEERS, _WRITES)
    async with AsyncExitStack() as until_over:
        held = until_over.enter_context(place.frozen())
        batch = await until_over.enter_async_context(place.batch(_FEW))
        with place.no_storage():
            held.thaw()
            yield Wait(batch, ("its input cannot be prepared now: ",), time.time())


@asynccontextmanager
async def its_results_cannot_be_stored(place: Place) -> AsyncGenerator[Wait]:
    await place.staff(_STEERS, _WRITES, _ASKS)
    await place.backend.faults(kind="slow", seconds=0.5, rate=1.0)
    async with place.batch(_MANY) as batch:
        await settled(place.client, batch.id, 1)
        with place.no_storage():
            yield Wait(
                batch,
                ("its results cannot be stored now", "a worker misses what slices need: storage"),
                time.time(),
            )


@asynccontextmanager
async def its_files_cannot_be_written(place: Place) -> AsyncGenerator[Wait]:
    """The storage is away from when all lines have settled."""
    await place.staff(_STEERS, _WRITES, _ASKS)
    await place.backend.faults(kind="slow", seconds=2.0, rate=1.0)
    async with place.batch(_FEW) as batch:
        await place.begun(batch)
        with place.frozen() as held:
            await settled(place.client, batch.id, len(_FEW))
            with place.no_storage():
                held.thaw()
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
async def _broken_backend(place: Place, reason: str, kind: str) -> AsyncGenerator[Wait]:
    """In mid-batch."""
    await place.staff(_STEERS, _WRITES, _ASKS)
    await place.backend.faults(kind="slow", seconds=0.5, rate=1.0)
    async with place.batch(_MANY) as batch:
        await settled(place.client, batch.id, 1)
        await place.backend.heal()
        await place.backend.faults(kind=kind, rate=1.0)
        yield Wait(batch, (reason,), time.time())


def _set_rate(place: Place, rate: float | None) -> None:
    with Client(place.stack.now.api) as client:
        if rate is None:
            client.clear_rate(MODEL)
        else:
            client.set_rate(MODEL, rate)
