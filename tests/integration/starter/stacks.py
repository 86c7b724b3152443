"""Runs `batchwright dev` as a process. Small stand-in servers replace the API and the workers."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

import batchwright
from batchwright.starter.embedded_stack.directory import StackInfo

_DEV = (
    sys.executable,
    "-m",
    "batchwright.starter",
    "dev",
    "--json",
    "--port",
    "0",
    "--temporal-port",
    "0",
    "--ui-port",
    "0",
)
_WELL = """
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Well(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

ThreadingHTTPServer(("127.0.0.1", int(os.environ["{port}"])), Well).serve_forever()
"""
_PORTS = {"api": "BATCHWRIGHT_API_PORT", "worker": "BATCHWRIGHT_METRICS_PORT"}


def write_standins(folder: Path, **programs: str) -> Path:
    """Write a package `batchwright` with stand-ins for `api` and `worker` to `folder`. Return `folder`.

    It must come before the real package on PYTHONPATH.

    Args:
        programs: source code of `api` or `worker`. By default, a server that answers each GET request with
            200.
    """
    ours = f"__path__.append({batchwright.__path__[0]!r})\n"
    for name, port in _PORTS.items():
        package = folder / "batchwright" / name
        package.mkdir(parents=True)
        (package.parent / "__init__.py").write_text(ours)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(programs.get(name, _WELL.replace("{port}", port)))
    return folder


def until(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)


class Dev:
    """A process that runs `batchwright dev --json` with stand-ins for the API and the workers."""

    def __init__(self, data: Path, standins: Path, *arguments: str) -> None:
        self.data = data
        self._stderr = data.parent / f"{data.name}.stderr"
        with self._stderr.open("ab") as errors:
            self.process = subprocess.Popen(
                [*_DEV, "--data", str(data), *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": str(standins)},
            )

    def ready(self) -> StackInfo:
        """Wait until the stack is ready and return the addresses that `dev` prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.output()
        self.printed = StackInfo.model_validate(json.loads(line))
        return self.printed

    @property
    def now(self) -> StackInfo:
        return StackInfo.model_validate_json((self.data / "dev.json").read_text())

    def output(self) -> str:
        return self._stderr.read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(240)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def pids(info: StackInfo) -> set[int]:
    """Return the process ids of the stack, except that of `dev` itself."""
    found = {info.pids.temporal, info.pids.postgres, *info.pids.api, *info.pids.worker}
    return found | ({info.pids.simulator} if info.pids.simulator else set())


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
