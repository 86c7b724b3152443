"""Output of `batchwright consistency`: its progress on a terminal, and the summary of its result."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchwright.activities.consistency.report import ConsistencyReport, Difference, DifferenceKind
from batchwright.starter.__main__ import app
from batchwright.starter.commands.operations.consistency import ConsistencyCheckProgress
from tests.activities.consistency.test_check import ConsistencyFixture


async def test_progress_is_printed_during_the_consistency_check() -> None:
    api, looking = ConsistencyFixture(), ConsistencyCheckProgress()
    assert looking.__rich__() == "Connecting."
    await api.live()
    api.run()
    looking.check = api.begun()
    assert looking.__rich__() == "0 live batches, 0 runs and 0 files compared so far."
    await looking.check.run()
    assert looking.__rich__() == "1 live batches, 1 runs and 0 files compared so far."


def test_on_a_terminal_the_consistency_check_prints_at_once_what_it_does(tmp_path: Path) -> None:
    terminal, theirs = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "BATCHWRIGHT_DATABASE_URL": "postgresql://127.0.0.1:1/none"}
    process = subprocess.Popen(
        [sys.executable, "-m", "batchwright.starter", "consistency"],
        env={**variables, "BATCHWRIGHT_TEMPORAL_ADDRESS": "127.0.0.1:1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=tmp_path,
    )
    os.close(theirs)
    output = b""
    try:
        while b"Connecting." not in output:
            output += os.read(terminal, 4096)
    finally:
        process.kill()
        process.communicate()
        os.close(terminal)


@pytest.mark.parametrize(("repaired", "left", "exit_code"), [(True, 0, 0), (False, 1, 1)])
def test_the_summary_says_what_was_compared_and_how_many_differences_are_left(
    repaired: bool, left: int, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(*_: object) -> ConsistencyReport:
        difference = Difference(
            kind=DifferenceKind.RUN_MISSING, tenant="acme", id="b", what="no run", repaired=repaired
        )
        return ConsistencyReport(differences=[difference], rows=1000, runs=2, files=3)

    monkeypatch.setattr("batchwright.starter.commands.operations.consistency._check", check)
    ended = CliRunner().invoke(app, ["consistency"])
    assert (ended.exit_code, ended.stderr) == (
        exit_code,
        f"1,000 live batches, 2 runs and 3 files compared; 1 differences, {left} left.\n",
    )
