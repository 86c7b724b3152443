"""Whatever tests and benchmarks start ends with them, also where they are killed.

A process of its own waits for their end, that closes a pipe, and ends all that has their mark in its
environment: whose child it became meanwhile, and which session it is in, does not matter then.
"""

import contextlib
import os
import sys
import time
from functools import cache
from secrets import token_hex

import psutil

_MARKS = "TESTED_BY"  # of all who guard a process, the outermost first
_PATIENCE_SECONDS = 15.0
_LOOK_AGAIN_SECONDS = 0.1


@cache
def guarded(patience_seconds: float = _PATIENCE_SECONDS) -> None:
    """From now on what this process starts does not outlive it; what has not ended by then is killed."""
    mark = token_hex(8)
    reading, writing = os.pipe()  # no program that is started has them
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
    os.environ.update(marks(mark))


def marks(*more: str) -> dict[str, str]:
    """For a process whose environment is made from nothing."""
    return {_MARKS: ":".join([*filter(None, [os.environ.get(_MARKS)]), *more])}


def _end_all(mark: str, patience_seconds: float) -> None:
    end = time.monotonic() + patience_seconds
    asked: set[psutil.Process] = set()
    # Twice: one may have been started during the first look, by one that had ended before it was looked at.
    while left := _marked(mark) or _marked(mark):
        for process in left:
            with contextlib.suppress(psutil.Error):
                if time.monotonic() > end:
                    process.kill()
                elif process not in asked:
                    asked.add(process)
                    process.terminate()
        psutil.wait_procs(left, timeout=_LOOK_AGAIN_SECONDS)


def _marked(mark: str) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another's
            if mark in process.environ().get(_MARKS, "").split(":"):
                found.append(process)
    return found


if __name__ == "__main__":
    sys.stdin.buffer.read()
    _end_all(sys.argv[1], float(sys.argv[2]))
