"""Start of `python -m batchwright.worker`.

A SIGTERM or SIGINT during the imports, which take seconds, ends the process at once with exit code 0, because
nothing has to be drained yet. `ShutdownSignal` handles the signals once the event loop runs.
"""

import os
import signal
from types import FrameType


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(0)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    from batchwright.worker.main import run

    run()
