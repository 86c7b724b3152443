"""Entry point of the worker: it runs when the worker is started with `python -m batchwright.worker`.

The imports take seconds. A SIGTERM or SIGINT during the imports ends the process at once with exit code 0,
because no work has begun yet. Later, `ShutdownSignal` handles both signals.
"""

import os
import signal
from types import FrameType


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(0)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    from batchwright.process_exit import collect_rarely

    collect_rarely()
    from batchwright.worker.main import run

    run()
