"""Exit codes and output of processes that end with `run_and_exit`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# The SDK's threads abort now and then while the interpreter finalizes.
_ABORTS = "import atexit, os; atexit.register(os.abort)\n"


def run(code: str, stdout: int = subprocess.PIPE) -> "subprocess.CompletedProcess[str]":
    expected = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        [sys.executable, "-c", code],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=expected,
        timeout=120,
    )


def left(main: str) -> str:
    imports = "import sys\nfrom batchwright.process_exit import run_and_exit"
    return f"{_ABORTS}{imports}\nrun_and_exit(lambda: {main})"


def process(module: str, breaks: str) -> "subprocess.CompletedProcess[str]":
    """Run `python -m module` and return its result. Its function `breaks` raises an unexpected exception."""
    place, _, name = breaks.rpartition(".")
    return run(
        f"{_ABORTS}import runpy, sys, {place}\n"
        f"{place}.{name} = lambda *_: 1 / 0\n"
        f"sys.argv = [{module!r}]\n"
        f"runpy.run_module('batchwright.{module}', run_name='__main__', alter_sys=True)"
    )


@pytest.mark.parametrize("module", ["api", "worker"])
def test_a_process_with_an_unexpected_failure_ends_before_the_interpreter_aborts_it(
    module: str,
) -> None:
    ended = process(module, "batchwright.settings.load")
    assert ended.returncode == 1
    assert ended.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    ("module", "serves", "expected"),
    [
        ("api", "batchwright.api.lifespan.open_dependencies", "the API failed"),
        ("worker", "batchwright.worker.process.serve", "the worker failed"),
    ],
)
def test_a_failure_while_a_process_serves_is_in_its_log(
    monkeypatch: pytest.MonkeyPatch, module: str, serves: str, expected: str
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_API_PORT", "0")
    monkeypatch.setenv("BATCHWRIGHT_BACKENDS", '["http://127.0.0.1:9"]')
    ended = process(module, serves)
    assert ended.returncode == 1
    assert expected in ended.stderr


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_the_command_line_ends_before_the_interpreter_could_abort_it(argument: str) -> None:
    called = f"import sys; sys.argv = ['batchwright', {argument!r}]\n"
    ended = run(f"{_ABORTS}{called}from batchwright.starter.__main__ import main; main()")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "batchwright" in ended.stdout


@pytest.mark.parametrize(
    ("main", "code"),
    [("None", 0), ("3", 3), ("sys.exit()", 0), ("sys.exit(4)", 4), ("sys.exit('no')", 1), ("1 / 0", 1)],
)
def test_the_exit_code_is_that_of_the_interpreter(main: str, code: int) -> None:
    assert run(left(main)).returncode == code


def test_a_traceback_is_printed_as_usual() -> None:
    assert run(left("sys.exit('no')")).stderr == "no\n"
    assert run(left("1 / 0")).stderr.endswith("ZeroDivisionError: division by zero\n")


def test_all_that_was_printed_is_written() -> None:
    ended = run(left("print('x' * 100_000)"))
    assert (ended.returncode, len(ended.stdout)) == (0, 100_001)


def test_a_disk_that_is_full_is_not_a_success() -> None:
    with Path("/dev/full").open("w") as full:
        ended = run(left("print('result')"), full.fileno())
    assert (ended.returncode, ended.stderr) == (120, "<stdout>: [Errno 28] No space left on device\n")


def test_a_command_whose_output_does_not_fit_on_the_disk_fails_without_a_traceback() -> None:
    arguments = ["batchwright", "config", "show", "--all"]
    with Path("/dev/full").open("w") as full:
        ended = run(
            f"import sys; sys.argv = {arguments}\nfrom batchwright.starter.__main__ import main; main()",
            full.fileno(),
        )
    assert ended.returncode == 3
    assert ended.stderr == "The output or a file cannot be written: No space left on device.\n"


def test_a_closed_pipe_prints_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = run(left("print('result')"), writing)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (120, "")


@pytest.mark.parametrize(
    ("module", "library"), [("starter.commands.batches.control", "temporalio"), ("api.main", "aiohttp")]
)
def test_the_start_of_a_process_does_not_wait_for_a_library_that_it_does_not_need(
    module: str, library: str
) -> None:
    ran = run(f"import sys, batchwright.{module}; print({library!r} in sys.modules)")
    assert ran.stdout == "False\n"
