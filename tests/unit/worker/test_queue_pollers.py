"""Pollers start and stop when the required task queues change."""

import asyncio

import pytest

from batchwright.worker.pollers import PollerFactory, QueuePollers


class Poller:
    """A poller that runs until it is shut down and its slices have drained, or until it fails."""

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
        self.created: list[Poller] = []

    def of(self, *queues: str) -> dict[str, PollerFactory]:
        return {queue: lambda queue=queue: self.make(queue) for queue in queues}

    def make(self, queue: str) -> Poller:
        self.created.append(Poller(queue))
        return self.created[-1]


async def test_a_new_queue_is_polled_and_a_removed_one_is_not() -> None:
    pollers, fleet = Pollers(), QueuePollers()
    fleet.set_queues(pollers.of("a", "b"))
    fleet.set_queues(pollers.of("b", "c"))
    assert fleet.queues == ["b", "c"]
    assert [poller.queue for poller in pollers.created] == ["a", "b", "c"]
    await pollers.created[0].stopping.wait()
    await fleet.shutdown()
    assert fleet.queues == []


async def test_a_draining_queue_delays_no_other() -> None:
    pollers, fleet = Pollers(), QueuePollers()
    fleet.set_queues(pollers.of("a"))
    pollers.created[0].drained.clear()
    fleet.set_queues(pollers.of("b"))
    assert fleet.queues == ["b"]
    pollers.created[0].drained.set()
    await fleet.shutdown()


async def test_a_queue_that_returns_while_it_drains_is_polled_again_afterwards() -> None:
    """The SDK refuses two workers that poll the same task queue."""
    pollers, fleet = Pollers(), QueuePollers()
    fleet.set_queues(pollers.of("a"))
    pollers.created[0].drained.clear()
    fleet.set_queues({})
    fleet.set_queues(pollers.of("a", "b"))
    await pollers.created[0].stopping.wait()
    assert fleet.queues == ["b"]  # no other queue waits for it
    pollers.created[0].drained.set()
    while fleet.queues != ["a"]:
        fleet.set_queues(pollers.of("a"))
        await asyncio.sleep(0)
    assert len(pollers.created) == 3
    await fleet.shutdown()


async def test_a_failed_poller_is_reported() -> None:
    pollers, fleet = Pollers(), QueuePollers()
    fleet.set_queues(pollers.of("a"))
    pollers.created[0].breaks(RuntimeError("the namespace is gone"))
    with pytest.raises(RuntimeError, match="the namespace is gone"):
        await fleet.wait_for_failure()
    await fleet.shutdown()


async def test_a_poller_that_breaks_while_it_drains_is_reported() -> None:
    pollers, fleet = Pollers(), QueuePollers()
    fleet.set_queues(pollers.of("a"))

    async def shutdown() -> None:
        raise RuntimeError("broken")

    pollers.created[0].shutdown = shutdown
    fleet.set_queues({})
    with pytest.raises(RuntimeError, match="broken"):
        await fleet.wait_for_failure()
