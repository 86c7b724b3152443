"""Pollers come and go with the models that backends serve."""

import asyncio

import pytest

from worker.fleet import Fleet


class Poller:
    """Polls until it is shut down and its slices have drained, or until it breaks."""

    def __init__(self, model: str) -> None:
        self.model = model
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

    def make(self, model: str) -> Poller:
        self.made.append(Poller(model))
        return self.made[-1]


async def test_a_model_that_appears_is_polled_and_one_that_goes_is_not() -> None:
    pollers = Pollers()
    fleet = Fleet(pollers.make)
    await fleet.follow(frozenset({"a", "b"}))
    await fleet.follow(frozenset({"b", "c"}))
    assert fleet.models == ["b", "c"]
    assert [poller.model for poller in pollers.made] == ["a", "b", "c"]
    await pollers.made[0].stopping.wait()
    await fleet.shutdown()
    assert fleet.models == []


async def test_only_the_named_models_are_polled() -> None:
    fleet = Fleet(Pollers().make, only=["a", "x"])
    await fleet.follow(frozenset({"a", "b"}))
    assert fleet.models == ["a"]
    await fleet.shutdown()


async def test_a_model_that_drains_holds_no_other_up() -> None:
    pollers = Pollers()
    fleet = Fleet(pollers.make)
    await fleet.follow(frozenset({"a"}))
    pollers.made[0].drained.clear()
    await fleet.follow(frozenset({"b"}))
    assert fleet.models == ["b"]
    pollers.made[0].drained.set()
    await fleet.shutdown()


async def test_a_model_that_is_back_while_it_drains_is_polled_again_afterwards() -> None:
    """The SDK refuses two workers on one queue."""
    pollers = Pollers()
    fleet = Fleet(pollers.make)
    await fleet.follow(frozenset({"a"}))
    pollers.made[0].drained.clear()
    await fleet.follow(frozenset())
    back = asyncio.create_task(fleet.follow(frozenset({"a"})))
    await pollers.made[0].stopping.wait()
    assert len(pollers.made) == 1
    pollers.made[0].drained.set()
    await back
    assert fleet.models == ["a"]
    assert len(pollers.made) == 2
    await fleet.shutdown()


async def test_a_poller_that_fails_is_told() -> None:
    pollers = Pollers()
    fleet = Fleet(pollers.make)
    await fleet.follow(frozenset({"a"}))
    pollers.made[0].breaks(RuntimeError("the namespace is gone"))
    with pytest.raises(RuntimeError, match="the namespace is gone"):
        await fleet.failed()
    await fleet.shutdown()
