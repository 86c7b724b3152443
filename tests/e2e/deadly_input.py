"""Module that the workers of a test import as a hook. It kills workers that ingest an input with DEADLY.

The environment variable TEST_DEATHS names a file that gets one byte for each killed worker. The variable
TEST_MAX_DEATHS is the number of deaths after which the input no longer kills. Without these variables, as in
the process of the test, the module changes nothing.
"""

import os
import signal
from pathlib import Path

from batchwright.activities.ingestion.scanner import Scanner
from batchwright.inference.hooks import HookCall

DEADLY = "this line kills its worker"
DEATHS, MAX_DEATHS = "TEST_DEATHS", "TEST_MAX_DEATHS"

_feed = Scanner.feed


def _feed_or_die(self: Scanner, piece: bytes) -> None:
    deaths = Path(os.environ[DEATHS])
    if DEADLY.encode() in piece and count_deaths(deaths) < int(os.environ[MAX_DEATHS]):
        with deaths.open("ab") as file:
            file.write(b"x")
        os.kill(os.getpid(), signal.SIGKILL)
    _feed(self, piece)


def count_deaths(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


async def change_nothing(call: HookCall) -> object:
    return None


if DEATHS in os.environ:
    Scanner.feed = _feed_or_die
