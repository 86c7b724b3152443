"""Signals before there is a loop to hear them: nothing runs yet, so the process leaves at once, with 0."""

import os
import signal
from types import FrameType


def leave_at_a_signal() -> None:
    """Until the loop takes the signals over."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(0)
