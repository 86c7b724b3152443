"""ExpensiveTaskLimiter: slots per process and per tenant, and the order in which waiting tasks get slots."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from batchwright.api.errors import ApiError
from batchwright.api.services.expensive_task_limiter import ExpensiveTaskLimiter


@asynccontextmanager
async def held(limiter: ExpensiveTaskLimiter, *tasks: str) -> AsyncGenerator[None]:
    """Context manager that uses a slot for each of these tasks. A task is a tenant and a name, such as `blue
    1`.
    """
    async with AsyncExitStack() as stack:
        for task in tasks:
            assert not await stack.enter_async_context(limiter.slot(task.split()[0], task))
        yield


@pytest.mark.parametrize(
    ("theirs", "key"),
    [(["blue 1", "green 2", "pink 3"], "red 4"), (["red 1"], "red 4"), (["red 4"], "red 4")],
    ids=["all are taken", "half by one tenant", "for the same task"],
)
async def test_a_request_without_a_slot_in_time_is_refused_with_retry_after(
    theirs: list[str], key: str
) -> None:
    limiter = ExpensiveTaskLimiter(3, seconds=0)
    async with held(limiter, *theirs):
        with pytest.raises(ApiError, match="none of 3 places") as refused:
            async with held(limiter, key):
                pass
        async with held(ExpensiveTaskLimiter(3, 0), key):  # the limit of the process
            pass
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    assert refused.value.headers["Retry-After"]
    async with held(limiter, key):
        pass


async def test_tenants_do_not_wait_for_each_other_because_their_objects_have_the_same_name() -> None:
    limiter, name = ExpensiveTaskLimiter(3, seconds=0), "s3://shared/input.jsonl"
    async with limiter.slot("red", name), limiter.slot("blue", name) as waited:
        assert not waited


async def test_a_tenant_that_has_released_a_slot_is_still_limited_with_its_others() -> None:
    limiter = ExpensiveTaskLimiter(4, seconds=0)
    async with held(limiter, "red 1"):
        async with held(limiter, "red 2"):
            pass
        async with held(limiter, "red 3"):
            with pytest.raises(ApiError, match="none of 4 places"):
                async with held(limiter, "red 4"):
                    pass


async def test_the_next_waiting_request_gets_the_slot_unless_its_tenant_has_its_maximum() -> None:
    limiter, came = ExpensiveTaskLimiter(2, seconds=60), list[str]()

    async def enter(tenant: str, task: str) -> None:
        async with limiter.slot(tenant, task) as waited:
            assert waited
            came.append(task)

    async with AsyncExitStack() as blue, held(limiter, "red 1"):
        await blue.enter_async_context(held(limiter, "blue 2"))
        waiting = [asyncio.create_task(enter(*task.split())) for task in ("red 3", "green 4", "pink 5")]
        await asyncio.sleep(0)
        await blue.aclose()
        await asyncio.gather(*waiting[1:])
        assert came == ["4", "5"]
    await waiting[0]
    assert came == ["4", "5", "3"]


async def test_a_request_that_is_aborted_releases_its_slot() -> None:
    limiter = ExpensiveTaskLimiter(1, seconds=60)
    async with held(limiter, "red 1"):
        waiting = asyncio.create_task(limiter.slot("blue", "2").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        assert isinstance(*await asyncio.gather(waiting, return_exceptions=True), asyncio.CancelledError)
        late = asyncio.create_task(limiter.slot("blue", "3").__aenter__())
        await asyncio.sleep(0)
    late.cancel()  # at the moment it is granted a slot
    assert isinstance(*await asyncio.gather(late, return_exceptions=True), asyncio.CancelledError)
    async with held(limiter, "red 1"):
        pass
