"""Background tasks: a failed task is reported and restarted."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from batchwright.background import BackgroundTaskFailing, BackgroundTasks, log_failure
from batchwright.starter.embedded_stack.restart_loop import RestartLoop
from batchwright.worker.dependency_checks import DependencyMonitor
from batchwright.worker.pollers import QueuePollers

NEVER = 3600.0


@asynccontextmanager
async def background(
    report: Callable[[str, str], None] = lambda name, error: None, *, steady_seconds: float = NEVER
) -> AsyncGenerator[BackgroundTasks]:
    tasks = BackgroundTasks(report, first_pause=0.001, steady_seconds=steady_seconds)
    try:
        yield tasks
    finally:
        await tasks.stop()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


class Loop:
    """A task that fails its first `failures` runs, and then runs until it is cancelled."""

    def __init__(self, failures: int, error: BaseException | None = None) -> None:
        self.runs, self.failures, self.error = 0, failures, error
        self.steady, self.cancelled = asyncio.Event(), False

    async def __call__(self) -> None:
        self.runs += 1
        if self.runs <= self.failures:
            if self.error is not None:
                raise self.error
            return
        self.steady.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("year 20262026 is out of range"), "ValueError: year 20262026 is out of range"),
        (None, "it returned"),
        (asyncio.CancelledError(), "CancelledError: "),
        (ExceptionGroup("two", [OSError("a"), KeyError("b")]), "ExceptionGroup: two (2 sub-exceptions)"),
    ],
    ids=["exception", "returned", "cancelled from inside", "group"],
)
async def test_a_task_that_ends_is_reported_and_runs_again(
    error: BaseException | None, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages: list[tuple[str, str]] = []
    async with background(lambda name, text: messages.append((name, text))) as tasks:
        loop = Loop(2, error)
        tasks.start("registry", loop)
        await until(lambda: loop.runs == 3)
        with pytest.raises(BackgroundTaskFailing, match=r"^registry: "):
            await tasks.check()
    assert messages == [("registry", expected)] * 2
    records = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert [each.message for each in records] == ["a background task ended and is restarted"] * 2
    assert all((each.exc_info is not None) is (error is not None) for each in records)
    assert loop.cancelled


async def test_the_check_passes_again_once_the_task_runs_steadily() -> None:
    async with background(steady_seconds=0.01) as tasks:
        loop = Loop(3, ValueError("odd"))
        tasks.start("registry", loop)
        await until(lambda: loop.runs == 4)

        async def passes() -> bool:
            try:
                await tasks.check()
            except BackgroundTaskFailing:
                return False
            return True

        while not await passes():
            await asyncio.sleep(0.001)


async def test_every_failing_task_is_named() -> None:
    async with background() as tasks:
        loops = [Loop(1, ValueError("one")), Loop(1, KeyError("two")), Loop(0)]
        for name, loop in zip("abc", loops, strict=True):
            tasks.start(name, loop)
        await until(lambda: [loop.runs for loop in loops] == [2, 2, 1])
        with pytest.raises(BackgroundTaskFailing, match=r"^a: ValueError: one; b: KeyError: 'two'$"):
            await tasks.check()


async def test_a_task_that_may_return_is_not_run_again() -> None:
    async with background() as tasks:
        loop = Loop(1)
        tasks.start("readiness", loop, may_return=True)
        await until(lambda: loop.runs == 1)
        await asyncio.sleep(0)
        await tasks.check()
    assert loop.runs == 1


async def test_pauses_double_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep, own_loop = asyncio.sleep, asyncio.get_running_loop()

    async def record_pause(seconds: float) -> None:
        """Record the pause instead of sleeping. Event loops in other threads really sleep."""
        if asyncio.get_running_loop() is own_loop:
            pauses.append(seconds)
        else:
            await sleep(seconds)

    monkeypatch.setattr("batchwright.background.asyncio.sleep", record_pause)
    tasks = BackgroundTasks()
    loop = Loop(9, ValueError("odd"))
    tasks.start("registry", loop)
    await loop.steady.wait()
    await tasks.stop()
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


async def test_a_long_error_is_cut() -> None:
    messages: list[str] = []
    async with background(lambda name, text: messages.append(text)) as tasks:
        tasks.start("registry", Loop(1, ValueError("x" * 100_000)))
        await until(lambda: bool(messages))
    assert len(messages[0]) == 300


async def test_a_worker_whose_background_task_fails_is_unready_and_names_it() -> None:
    async with background() as tasks:
        loop = Loop(1, ValueError("odd"))
        tasks.start("registry", loop)
        await until(lambda: loop.runs == 2)
        needs = DependencyMonitor({"background_tasks": tasks.check}, required=frozenset())
        assert await needs.check_all() == {"background_tasks": "registry: ValueError: odd"}


async def test_a_task_that_no_code_awaits_logs_its_exception_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = asyncio.create_task(Loop(1, ValueError("odd"))(), name="note")
    task.add_done_callback(log_failure)
    await until(task.done)
    await asyncio.sleep(0)
    assert [record.message for record in caplog.records] == ["a background task failed"]


class Part:
    """A service of the embedded stack. The first attempts to watch it fail."""

    name, log, pid = "api", Path("/nowhere"), 1

    def __init__(self) -> None:
        self.checks, self.starts = 0, 0

    async def start(self) -> None:
        self.starts += 1

    async def ended(self) -> str:
        self.checks += 1
        if self.checks == 1:
            raise OSError("the process table cannot be read")
        if self.checks == 2:
            return "ended"
        await asyncio.Event().wait()
        return ""

    async def stop(self, patience_seconds: float) -> None: ...


async def test_a_service_of_the_stack_is_supervised_again_after_its_supervisor_failed() -> None:
    expected: list[str] = []
    part = Part()
    async with background(lambda name, error: expected.append(f"{name}: {error}")) as tasks:
        tasks.start(part.name, RestartLoop(part, expected.append).run)
        await until(lambda: part.starts == 1)
    assert expected[0] == "api: OSError: the process table cannot be read"


class Undrainable:
    """A poller that cannot be shut down."""

    async def run(self) -> None:
        await asyncio.sleep(0)

    async def shutdown(self) -> None:
        raise RuntimeError("the poller is broken")


async def test_a_poller_that_cannot_be_shut_down_ends_the_process() -> None:
    fleet = QueuePollers()
    fleet.set_queues({"a": Undrainable})
    fleet.set_queues({})
    with pytest.raises(RuntimeError, match="the poller is broken"):
        await fleet.wait_for_failure()
    fleet.set_queues({"a": Undrainable})
    await fleet.shutdown()


async def test_a_task_is_named_as_it_starts_so_that_its_failures_count_from_0() -> None:
    started: list[str] = []
    tasks = BackgroundTasks(started=started.append)
    tasks.start("loop", _endless)
    assert started == ["loop"]
    await tasks.stop()


async def _endless() -> None:
    await asyncio.Event().wait()
