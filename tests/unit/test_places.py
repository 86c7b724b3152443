"""Places for dear work: how many, of whom, and who comes next."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from api.errors import ApiError
from api.places import Places


@asynccontextmanager
async def held(places: Places, *things: str) -> AsyncGenerator[None]:
    """Things by tenant and name, as in `blue 1`."""
    async with AsyncExitStack() as stack:
        for thing in things:
            assert not await stack.enter_async_context(places.taken(thing.split()[0], thing))
        yield


@pytest.mark.parametrize(
    ("theirs", "asked"),
    [(["blue 1", "green 2", "pink 3"], "red 4"), (["red 1"], "red 4"), (["red 4"], "red 4")],
    ids=["all are taken", "half by one tenant", "for the same thing"],
)
async def test_who_finds_no_place_in_time_is_refused_for_a_while(theirs: list[str], asked: str) -> None:
    places = Places(3, seconds=0)
    async with held(places, *theirs):
        with pytest.raises(ApiError, match="none of 3 places") as refused:
            async with held(places, asked):
                pass
        async with held(Places(3, 0), asked):  # it is of the process
            pass
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    assert refused.value.headers["Retry-After"]
    async with held(places, asked):
        pass


async def test_who_waits_comes_next_but_for_those_who_may_have_no_more() -> None:
    places, came = Places(2, seconds=60), list[str]()

    async def come(tenant: str, thing: str) -> None:
        async with places.taken(tenant, thing) as waited:
            assert waited
            came.append(thing)

    async with AsyncExitStack() as blue, held(places, "red 1"):
        await blue.enter_async_context(held(places, "blue 2"))
        waiting = [asyncio.create_task(come(*thing.split())) for thing in ("red 3", "green 4", "pink 5")]
        await asyncio.sleep(0)
        await blue.aclose()
        await asyncio.gather(*waiting[1:])
        assert came == ["4", "5"]
    await waiting[0]
    assert came == ["4", "5", "3"]


async def test_who_gives_up_leaves_no_place_taken() -> None:
    places = Places(1, seconds=60)
    async with held(places, "red 1"):
        waiting = asyncio.create_task(places.taken("blue", "2").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        assert isinstance(*await asyncio.gather(waiting, return_exceptions=True), asyncio.CancelledError)
        late = asyncio.create_task(places.taken("blue", "3").__aenter__())
        await asyncio.sleep(0)
    late.cancel()  # in the moment that it is given one
    assert isinstance(*await asyncio.gather(late, return_exceptions=True), asyncio.CancelledError)
    async with held(places, "red 1"):
        pass
