"""Runs commands that download from a package registry. Repeats them, because registries sometimes fail."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed


def fetched(command: Sequence[str | Path], cwd: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run `command`. If it fails, repeat it, up to three runs in total.

    Raises:
        AssertionError: the last run failed. The message contains the end of its error output.
    """

    def run() -> None:
        ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=180)
        assert ended.returncode == 0, f"{command} ended with {ended.returncode}:\n{ended.stderr[-3000:]}"

    Retrying(
        retry=retry_if_exception_type((AssertionError, subprocess.TimeoutExpired)),
        stop=stop_after_attempt(3),
        wait=wait_fixed(10),
        reraise=True,
    )(run)
