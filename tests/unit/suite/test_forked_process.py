"""Forked programs of tests are processes like those that an interpreter starts."""

import json
import os
import signal
import subprocess
import sys

import pytest

from batchwright.rules.planning import slicing
from tests import forked_process
from tests.constants import with_constants
from tests.forked_process import ForkedProcess, ProcessServer
from tests.integration.starter.stacks import alive, until

PROGRAM = "tests.unit.suite.forked_program"
STARTS = """
import signal
from tests.unit.suite.test_forked_process import forked

with forked() as process:
    process.stderr.readline()
    print(process.pid, flush=True)
    signal.pause()
"""


def forked(*arguments: str, **environment: str) -> ForkedProcess:
    return ForkedProcess((PROGRAM, *arguments), ["json"], {**os.environ, **environment})


def test_a_forked_program_has_its_own_process_group_arguments_and_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLOUR", raising=False)
    for colour in ("blue", "green"):
        with forked("3", COLOUR=colour) as process:
            output, errors = process.communicate()
        assert json.loads(output) == {"pid": process.pid, "group": process.pid, "colour": colour}
        assert (process.returncode, errors) == (3, "ready\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_a_forked_program(number: signal.Signals) -> None:
    with forked() as process:
        assert process.stderr.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(60) == -number


def test_a_forked_program_ends_when_the_process_that_started_it_is_killed() -> None:
    with forked("0"):  # its server goes on, because this process uses it
        pass
    with subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.kill()
    until(lambda: not alive(pid), seconds=240)


def test_a_program_that_does_not_end_in_time_is_reported_and_goes_on() -> None:
    with forked() as process:
        with pytest.raises(TimeoutError):
            process.wait(0.01)
        os.kill(process.pid, 0)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL


def test_forked_programs_have_their_constants() -> None:
    assert slicing.MAX_SLICE_LINES != 7
    program = ["tests.unit.suite.forked_constant"]
    changed = {**os.environ, **with_constants(max_slice_lines=7)}
    for environment, value in ((changed, 7), (os.environ, slicing.MAX_SLICE_LINES)):
        with ForkedProcess(program, ["batchwright.rules.planning.slicing"], environment) as process:
            assert process.communicate() == (f"{value}\n", "")


def test_a_server_is_shared_and_ends_with_its_last_user(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (ProcessServer(["json", "uuid"], {}) for _ in range(2))
    assert first.started is not None
    assert second.started is None
    first.close()

    def of_the_second_user(*_: object) -> ProcessServer:
        return second

    monkeypatch.setattr(forked_process, "_server", of_the_second_user)
    for code in (0, 3):
        with forked(str(code)) as process:
            assert process.wait(60) == code
    assert first.started.poll() is None
    second.close()
    assert first.started.wait(60) == 0
    third, other = ProcessServer(["json", "uuid"], {}), ProcessServer(["json"], {"COLOUR": "blue"})
    for server in (third, other):
        assert server.started is not None
        server.close()
        assert server.started.wait(60) == 0
