"""Helpers that run other programs."""

import os
import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

_READY_SECONDS = 120
_STOP_SECONDS = 30
_SECONDS = 400


def output_of(
    command: list[str],
    environment: dict[str, str] | None = None,
    given: str | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a command and return its output.

    Args:
        given: Standard input of the command.

    Raises:
        AssertionError: the exit code is not 0. The message has the whole output.
    """
    done = subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        cwd=cwd,
        input=given,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def running(command: list[str], log: Path) -> Generator[None]:
    with log.open("ab") as there, subprocess.Popen(command, stdout=there, stderr=there) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def patiently(step: Callable[[], object], seconds: float = _READY_SECONDS) -> None:
    """Call `step` repeatedly until it no longer raises AssertionError.

    If it still raises after `seconds`, raise its last error.
    """
    Retrying(
        retry=retry_if_exception_type(AssertionError),
        stop=stop_after_delay(seconds),
        wait=wait_fixed(0.5),
        reraise=True,
    )(step)
