"""Processes that tests start do not outlive these tests, however the tests end."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import psutil
import pytest

from tests.integration.starter.stacks import alive, until

ROOT = Path(__file__).parents[3]
_PLUGINS = ("-p", "no:cacheprovider", "--disable-plugin-autoload", "-p", "xdist.plugin")
_STARTS = """
import os, subprocess, sys, time
from pathlib import Path
from tests.guard import start_guard

start_guard(patience_seconds=1)
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
SHELL = ["sh", "-c", f"sleep 600 & echo $! > grandchild; wait"]

def test_that_starts_what_lives_on():
    deaf = subprocess.Popen([sys.executable, "-c", DEAF], start_new_session=True)
    parent = subprocess.Popen(SHELL, start_new_session=True)
    while not Path("grandchild").exists() or not Path("grandchild").read_text():
        time.sleep(0.01)
    started = [os.getpid(), deaf.pid, parent.pid, int(Path("grandchild").read_text())]
    Path("unfinished").write_text(" ".join(map(str, started)))
    Path("unfinished").rename("started")
    {then}
"""


class Run:
    """A run of pytest with one test, and the processes that this test has started."""

    def __init__(self, folder: Path, then: str, *options: str) -> None:
        (folder / "test_it.py").write_text(_STARTS.replace("{then}", then))
        (folder / "pytest.ini").touch()
        self._started = folder / "started"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", *_PLUGINS, *options, "test_it.py"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
        )
        until(self._started.exists, seconds=240)
        self.tester, *self.started = map(int, self._started.read_text().split())


Begin = Callable[..., Run]


@pytest.fixture
def begin(tmp_path: Path) -> Generator[Begin]:
    runs: list[Run] = []

    def begun(then: str, *options: str) -> Run:
        runs.append(Run(tmp_path, then, *options))
        return runs[-1]

    yield begun
    for run in runs:
        run.process.kill()
        run.process.wait()
        for pid in filter(alive, [run.tester, *run.started]):
            psutil.Process(pid).kill()


def have_ended(pids: list[int]) -> bool:
    return not any(map(alive, pids))


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "workers"])
def test_processes_of_a_killed_run_end_even_in_other_sessions(begin: Begin, options: tuple[str, ...]) -> None:
    run = begin("time.sleep(600)", *options)
    assert all(map(alive, run.started))
    run.process.kill()
    until(lambda: have_ended([run.tester, *run.started]), seconds=240)


def test_processes_of_a_killed_pytest_worker_end_while_the_run_continues(begin: Begin) -> None:
    run = begin("time.sleep(600)", "-n", "1", "--max-worker-restart", "0")
    assert run.tester != run.process.pid
    os.kill(run.tester, signal.SIGKILL)
    until(lambda: have_ended(run.started), seconds=240)


def test_processes_left_by_a_finished_run_end_too(begin: Begin) -> None:
    run = begin("pass")
    run.process.wait(240)
    until(lambda: have_ended(run.started), seconds=240)
