"""Runs single Batchwright processes with servers, code and settings of the test."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
from tenacity import Retrying, retry_if_exception_type, retry_if_result, stop_after_delay, wait_fixed

from tests.clients import get
from tests.e2e.stack import SETTINGS

_READY_SECONDS = 240
T = TypeVar("T")


@contextmanager
def process(
    module: str, *arguments: str, well: str, environment: dict[str, str], code: Path | None = None
) -> Generator[int]:
    """Context manager that runs `python -m batchwright.MODULE`. It yields the process id when it is ready.

    Args:
        well: URL that responds with 200 when the process is ready.
        code: directory whose modules take precedence over the installed ones.
    """
    variables = {**os.environ, **SETTINGS, **environment}
    paths = [*([str(code)] if code else []), variables.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", f"batchwright.{module}", *arguments], env=variables
    ) as running:
        try:
            _until_well(well, running)
            yield running.pid
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(120)
            finally:
                running.kill()


@asynccontextmanager
async def beside(context: AbstractContextManager[T]) -> AsyncGenerator[T]:
    """Enter and leave a context manager in a thread, so that servers in the test's event loop can respond."""
    entered = await asyncio.to_thread(context.__enter__)
    try:
        yield entered
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


def _until_well(url: str, running: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        assert running.poll() is None, f"{running.args} ended with {running.returncode}"
        return get(url).status_code == 200

    Retrying(
        retry=retry_if_exception_type(httpx.TransportError) | retry_if_result(lambda well: not well),
        stop=stop_after_delay(_READY_SECONDS),
        wait=wait_fixed(0.2),
        reraise=True,
    )(answers)
