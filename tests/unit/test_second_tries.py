"""What a run tells of tests that failed first and passed then."""

import subprocess
import sys
from pathlib import Path

import pytest

_FAILS_ONCE = """
import pytest
from pathlib import Path

@pytest.mark.{mark}
def test_that_fails_once():
    tried = Path({tried!r})
    if not tried.exists():
        tried.touch()
        print("what it said")
        raise AssertionError("the port was taken")
"""
_PLUGINS = ("--disable-plugin-autoload", "-p", "pytest_rerunfailures", "-p", "tests.second_tries")


def run(folder: Path, mark: str) -> "subprocess.CompletedProcess[str]":
    (folder / "test_once.py").write_text(_FAILS_ONCE.format(mark=mark, tried=str(folder / "tried")))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  integration\n  slow\n")
    command = [sys.executable, "-m", "pytest", *_PLUGINS, "--rootdir", str(folder), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_with_a_real_server_there_is_a_second_try_and_the_first_is_told(tmp_path: Path) -> None:
    ended = run(tmp_path, "integration")
    assert (ended.returncode, "1 passed, 1 rerun" in ended.stdout) == (0, True)
    told = ended.stdout.partition("FAILED AT THE FIRST TRY: each may be a defect")[2]
    assert "the port was taken" in told
    assert "what it said" in told


def test_without_one_there_is_none(tmp_path: Path) -> None:
    ended = run(tmp_path, "slow")
    assert (ended.returncode, "1 failed" in ended.stdout) == (1, True)


@pytest.mark.integration
def test_tests_of_this_project_with_real_servers_have_it(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("flaky").kwargs == {"reruns": 1}
