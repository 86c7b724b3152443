"""What `batchwright audit` shows on a terminal before its answer."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from starter.commands.audit import Looking
from tests.activities.test_audit import House


async def test_what_was_compared_so_far_is_told_while_it_goes_on() -> None:
    house, looking = House(), Looking()
    assert looking.__rich__() == "Connecting."
    await house.live()
    house.run()
    looking.audit = house.begun()
    assert looking.__rich__() == "0 live batches, 0 runs and 0 files compared so far."
    await looking.audit.run()
    assert looking.__rich__() == "1 live batches, 1 runs and 0 files compared so far."


def test_on_a_terminal_it_says_at_once_what_it_does(tmp_path: Path) -> None:
    terminal, theirs = pty.openpty()
    told = {**os.environ, "TERM": "xterm", "BATCHWRIGHT_DATABASE_URL": "postgresql://127.0.0.1:1/none"}
    process = subprocess.Popen(
        [sys.executable, "-m", "starter", "audit"],
        env={**told, "BATCHWRIGHT_TEMPORAL_ADDRESS": "127.0.0.1:1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=tmp_path,
    )
    os.close(theirs)
    said = b""
    try:
        while b"Connecting." not in said:
            said += os.read(terminal, 4096)
    finally:
        process.kill()
        process.communicate()
        os.close(terminal)
