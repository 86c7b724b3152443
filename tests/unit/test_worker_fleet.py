"""Pollers come and go with the task queues that are wanted."""

import asyncio

import pytest

from worker.fleet import Fleet, Make


class Poller:
    """Polls until it is shut down and its slices have drained, or until it breaks."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.stopping, self.drained = asyncio.Event(), asyncio.Event()
        self.drained.set()
        self.error: Exception | None = None
        self.broken = asyncio.Event()

    async def run(self) -> None:
        ended = [asyncio.create_task(event.wait()) for event in (self.stopping, self.broken)]
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        for waiter in ended:
            waiter.cancel()
        if self.error is not None:
            raise self.error
        await self.drained.wait()

    async def shutdown(self) -> None:
        self.stopping.set()
        await self.drained.wait()

    def breaks(self, error: Exception) -> None:
        self.error = error
        self.broken.set()


class Pollers:
    def __init__(self) -> None:
        self.made: list[Poller] = []

    def of(self, *queues: str) -> dict[str, Make]:
        return {queue: lambda queue=queue: self.make(queue) for queue in queues}

    def make(self, queue: str) -> Poller:
        self.made.append(Poller(queue))
        return self.made[-1]


async def test_a_queue_that_appears_is_polled_and_one_that_goes_is_not() -> None:
    pollers, fleet = Pollers(), Fleet()
    await fleet.follow(pollers.of("a", "b"))
    await fleet.follow(pollers.of("b", "c"))
    assert fleet.queues == ["b", "c"]
    assert [poller.queue for poller in pollers.made] == ["a", "b", "c"]
    await pollers.made[0].stopping.wait()
    await fleet.shutdown()
    assert fleet.queues == []


async def test_a_queue_that_drains_holds_no_other_up() -> None:
    pollers, fleet = Pollers(), Fleet()
    await fleet.follow(pollers.of("a"))
    pollers.made[0].drained.clear()
    await fleet.follow(pollers.of("b"))
    assert fleet.queues == ["b"]
    pollers.made[0].drained.set()
    await fleet.shutdown()


async def test_a_queue_that_is_back_while_it_drains_is_polled_again_afterwards() -> None:
    """The SDK refuses two workers on one queue."""
    pollers, fleet = Pollers(), Fleet()
    await fleet.follow(pollers.of("a"))
    pollers.made[0].drained.clear()
    await fleet.follow({})
    back = asyncio.create_task(fleet.follow(pollers.of("a")))
    await pollers.made[0].stopping.wait()
    assert len(pollers.made) == 1
    pollers.made[0].drained.set()
    await back
    assert fleet.queues == ["a"]
    assert len(pollers.made) == 2
    await fleet.shutdown()


async def test_a_poller_that_fails_is_told() -> None:
    pollers, fleet = Pollers(), Fleet()
    await fleet.follow(pollers.of("a"))
    pollers.made[0].breaks(RuntimeError("the namespace is gone"))
    with pytest.raises(RuntimeError, match="the namespace is gone"):
        await fleet.failed()
    await fleet.shutdown()
