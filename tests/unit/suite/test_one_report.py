"""Reports of a test run with pytest-xdist, if reports of passed setups and teardowns are not sent."""

import subprocess
import sys
from pathlib import Path

import pytest

_TESTS = """
import pytest

@pytest.fixture
def broken_before():
    raise RuntimeError("broken before")

@pytest.fixture
def broken_after():
    yield
    raise RuntimeError("broken after")

def test_that_passes(): ...
def test_that_fails(): assert False, "wrong"
def test_with_a_broken_setup(broken_before): ...
def test_with_a_broken_teardown(broken_after): ...
@pytest.mark.skip(reason="not here")
def test_that_is_skipped(): ...
"""
_FAILS_ONCE = """
import pytest
from pathlib import Path

{mark}
def test_that_fails_once():
    tried = Path({tried!r})
    if not tried.exists():
        tried.touch()
        raise AssertionError("at first")
"""
_PLUGINS = ("--disable-plugin-autoload", "-p", "xdist.plugin", "-p", "tests.one_report")
_RERUNS = ("-p", "pytest_rerunfailures")  # registered before the plugin, as in pyproject.toml


def run(folder: Path, tests: str, *options: str) -> "subprocess.CompletedProcess[str]":
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-n", "1", "-ra", *options, *_PLUGINS]
    return subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("mark", "options"),
    [("@pytest.mark.flaky(reruns=1)", ()), ("", ("--reruns", "1")), ("", ("--force-reruns", "1"))],
)
def test_tests_that_may_have_a_second_try_have_it(
    tmp_path: Path, mark: str, options: tuple[str, ...]
) -> None:
    tests = _FAILS_ONCE.format(mark=mark, tried=str(tmp_path / "tried"))
    ended = run(tmp_path, tests, *_RERUNS, *options)
    assert (ended.returncode, "1 rerun in" in ended.stdout) == (0, True)


def test_failures_of_setups_and_teardowns_are_reported(tmp_path: Path) -> None:
    ended = run(tmp_path, _TESTS)
    assert ended.returncode == 1
    assert "1 failed, 2 passed, 1 skipped, 2 errors" in ended.stdout
    for reason in ("wrong", "broken before", "broken after", "not here"):
        assert reason in ended.stdout
