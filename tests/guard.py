"""Guard process that ends all processes of a test run or a benchmark, even if the run is killed.

Each started process inherits a mark, which is an environment variable. When the run ends, its pipe to the
guard closes. The guard then ends all processes with the mark, whatever their parents and sessions are.
"""

import contextlib
import os
import sys
import time
from functools import cache
from secrets import token_hex

import psutil

_MARKS = "TESTED_BY"  # marks of all guards of a process, the outermost first
_PATIENCE_SECONDS = 15.0
_LOOK_AGAIN_SECONDS = 0.1


@cache
def start_guard(patience_seconds: float = _PATIENCE_SECONDS) -> None:
    """Start the guard. It ends all processes that this process starts later.

    Args:
        patience_seconds: seconds after which a process that ignores SIGTERM is killed.
    """
    mark = token_hex(8)
    reading, writing = os.pipe()  # started programs do not inherit it
    os.register_at_fork(after_in_child=lambda: os.close(writing))
    null = os.open(os.devnull, os.O_RDWR)
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", __file__, mark, str(patience_seconds)],
        {name: value for name, value in os.environ.items() if name != _MARKS},
        file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0), *((os.POSIX_SPAWN_DUP2, null, to) for to in (1, 2))],
        setsid=True,
    )
    os.close(reading)
    os.close(null)
    os.environ.update(guard_environment(mark))


def guard_environment(*more: str) -> dict[str, str]:
    """Return environment variables for a process that does not inherit ours.

    They are the guard's mark, and the variables named in `more`.
    """
    return {_MARKS: ":".join([*filter(None, [os.environ.get(_MARKS)]), *more])}


def environment_of_the_run() -> dict[str, str]:
    """Return environment variables for a process that all processes of a test run share.

    Such a process ends with the test run, but not with the process of pytest-xdist that started it.
    """
    marks = os.environ.get(_MARKS, "")
    return {_MARKS: marks.rpartition(":")[0] or marks}


def _end_all(mark: str, patience_seconds: float) -> None:
    end = time.monotonic() + patience_seconds
    signalled: set[psutil.Process] = set()
    # Twice: during the first search, a process that ended before it was found may have started another one.
    while left := _marked(mark) or _marked(mark):
        for process in left:
            with contextlib.suppress(psutil.Error):
                if time.monotonic() > end:
                    process.kill()
                elif process not in signalled:
                    signalled.add(process)
                    process.terminate()
        psutil.wait_procs(left, timeout=_LOOK_AGAIN_SECONDS)


def _marked(mark: str) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or belongs to another user
            if mark in process.environ().get(_MARKS, "").split(":"):
                found.append(process)
    return found


if __name__ == "__main__":
    sys.stdin.buffer.read()
    _end_all(sys.argv[1], float(sys.argv[2]))
