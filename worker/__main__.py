"""Start of `python -m batchwright.worker`.

The imports take seconds. A signal during this time ends the process with 0, because nothing runs yet that has
to be drained. `ShutdownSignal` handles the signals once the event loop runs.
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
