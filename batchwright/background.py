"""Runs the background tasks of a process, and restarts each task that ends.

A health check reports each task that keeps failing. For a task that runs only once and is never awaited, use
`log_failure` as its done callback.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine

logger = logging.getLogger(__name__)
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_STEADY_SECONDS = 30.0
_MAX_ERROR_CHARACTERS = 300  # length of a reported error message
_Work = Callable[[], Coroutine[None, None, None]]


class BackgroundTaskFailing(Exception):
    """A background task has ended and has not recovered yet (see BackgroundTasks).

    The message lists the name and the last error of each task that has not recovered.
    """


class BackgroundTasks:
    """The endless background tasks of one process. Each task that ends is restarted.

    The pause before the first restart of a task is `first_pause` seconds. Each further end of the task
    doubles the pause, up to a minute. When the task has run for `steady_seconds`, it has recovered. The next
    pause of a recovered task is `first_pause` again.

    Args:
        report: called with the name of the task and the error, each time a task has ended.
        started: called with the name of each task that `start` adds.
    """

    def __init__(
        self,
        report: Callable[[str, str], None] = lambda name, error: None,
        *,
        started: Callable[[str], object] = str,
        first_pause: float = _FIRST_PAUSE_SECONDS,
        steady_seconds: float = _STEADY_SECONDS,
    ) -> None:
        self._report, self._started = report, started
        self._first_pause, self._steady = first_pause, steady_seconds
        self._tasks: list[asyncio.Task[None]] = []
        self._failures: dict[str, int] = {}  # failures by task, since the task last ran for `steady_seconds`
        self._errors: dict[str, str] = {}

    def start(self, name: str, work: _Work, *, may_return: bool = False) -> None:
        """Run `work` in the background until `stop` is called.

        - If `work` raises an exception, it is called again after a pause.
        - If `work` returns and `may_return` is False, it is called again after a pause, too.
        - If `work` returns and `may_return` is True, it is not called again, and this is not an error.
        """
        self._started(name)
        running = self._run_forever(name, work, may_return=may_return)
        self._tasks.append(asyncio.create_task(running, name=name))

    async def check(self) -> None:
        """Raise BackgroundTaskFailing if a task has ended and has not recovered yet.

        A task has recovered when it has run for `steady_seconds` after its restart.
        """
        if self._errors:
            raise BackgroundTaskFailing("; ".join(f"{name}: {error}" for name, error in self._errors.items()))

    async def stop(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _run_forever(self, name: str, work: _Work, *, may_return: bool) -> None:
        loop = asyncio.get_running_loop()
        while True:
            steady = loop.call_later(self._steady, self._on_recovered, name)
            try:
                await work()
                if may_return:
                    self._on_recovered(name)
                    return
                error: BaseException | None = None
            except asyncio.CancelledError as cancelled:
                task = asyncio.current_task()
                is_stopped = task is None or task.cancelling() > 0
                del task  # a cycle with this frame would keep the objects of the work in memory
                if is_stopped:
                    raise
                error = cancelled  # something that the task awaited was cancelled, not the task
            except Exception as caught:  # log the error of every task that ends
                error = caught
            finally:
                steady.cancel()
            await asyncio.sleep(self._on_failed(name, error))

    def _on_failed(self, name: str, error: BaseException | None) -> float:
        """Log and report that the task `name` has ended with `error`. Return the seconds to wait before its
        restart.
        """
        failures = self._failures.get(name, 0)
        self._failures[name] = failures + 1
        message = (
            "it returned" if error is None else f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARACTERS]
        )
        self._errors[name] = message
        pause = min(self._first_pause * 2 ** min(failures, 16), _LONGEST_PAUSE_SECONDS)
        extra = {"task": name, "error": message, "restart_seconds": pause}
        logger.error("a background task ended and is restarted", exc_info=error, extra=extra)
        self._report(name, message)
        return pause

    def _on_recovered(self, name: str) -> None:
        self._failures.pop(name, None)
        if self._errors.pop(name, None) is not None:
            logger.info("a background task runs again", extra={"task": name})


def log_failure(task: asyncio.Task[None]) -> None:
    """Log the exception of a finished task, if it raised one.

    Use this as the done callback of a task that is never awaited.
    """
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a background task failed", exc_info=error, extra={"task": task.get_name()})
