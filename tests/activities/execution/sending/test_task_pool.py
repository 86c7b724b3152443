"""The pool of asyncio tasks that complete requests: tasks are reused, and every item is completed."""

import asyncio
from contextvars import ContextVar

import pytest

from batchwright.activities.execution.request_tasks import TaskPool

OWNER = ContextVar("whose", default="nobody's")


class PoolFixture:
    """A task pool whose items complete when the test calls `finish`."""

    def __init__(self) -> None:
        self.completed: list[str] = []
        self.tasks: dict[str, asyncio.Task[None] | None] = {}
        self.contexts: dict[str, str] = {}
        self.following: list[str] = []  # each is submitted when another item completes
        self._finished: dict[str, asyncio.Event] = {}
        self.pool = TaskPool(self._execute, self._complete)

    async def submit(self, *items: str) -> None:
        for item in items:
            self.pool.submit(item)
        await self._settle()

    async def finish(self, *items: str) -> None:
        for item in items:
            self._finished[item].set()
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _execute(self, item: str) -> None:
        self.tasks[item], self.contexts[item] = asyncio.current_task(), OWNER.get()
        await self._finished.setdefault(item, asyncio.Event()).wait()

    def _complete(self, item: str) -> None:
        self.completed.append(item)
        if self.following:
            self.pool.submit(self.following.pop())


async def test_a_task_executes_one_item_after_the_other() -> None:
    fixture = PoolFixture()
    await fixture.submit("first")
    await fixture.finish("first")
    await fixture.submit("second")
    assert fixture.tasks["first"] is fixture.tasks["second"]


async def test_an_item_submitted_by_a_completion_runs_in_the_same_task() -> None:
    fixture = PoolFixture()
    fixture.following = ["second"]
    await fixture.submit("first")
    await fixture.finish("first")
    assert fixture.tasks["first"] is fixture.tasks["second"]


async def test_items_submitted_together_are_executed_together() -> None:
    fixture = PoolFixture()
    await fixture.submit("first", "second", "third")
    assert len(set(fixture.tasks.values())) == 3
    assert fixture.completed == []


async def test_every_item_completes_when_all_are_cancelled() -> None:
    fixture = PoolFixture()
    await fixture.submit("finished", "waiting")
    await fixture.finish("finished")
    fixture.pool.submit("assigned")
    fixture.pool.submit("not started")
    await fixture.pool.cancel_all()
    assert sorted(fixture.completed) == ["assigned", "finished", "not started", "waiting"]
    assert all(task is not None and task.done() for task in fixture.tasks.values())


async def test_a_cancelled_item_completes() -> None:
    fixture = PoolFixture()
    await fixture.submit("first")
    task = fixture.tasks["first"]
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fixture.completed == ["first"]


async def test_an_item_runs_in_the_context_of_the_pool_not_of_its_submitter() -> None:
    OWNER.set("the pool's")
    fixture = PoolFixture()
    OWNER.set("another's")
    await fixture.submit("first")
    assert fixture.contexts == {"first": "the pool's"}
