"""What a test run with pytest-xdist reports, if reports of passed setups and teardowns are not sent."""

import subprocess
import sys
from pathlib import Path

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
_PLUGINS = ("--disable-plugin-autoload", "-p", "xdist.plugin", "-p", "tests.one_report")


def test_failures_of_setups_and_teardowns_are_reported(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-n", "1", "-ra", *_PLUGINS, "--rootdir", str(tmp_path)]
    ended = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "1 failed, 2 passed, 1 skipped, 2 errors" in ended.stdout
    for reason in ("wrong", "broken before", "broken after", "not here"):
        assert reason in ended.stdout
