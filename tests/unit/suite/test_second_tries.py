"""The list of tests that may pass at their second try, and what a test run prints about them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import second_tries

_FAILS_ONCE = """
import pytest
from pathlib import Path

{mark}
def test_that_fails_once():
    tried = Path({tried!r})
    if not tried.exists():
        tried.touch()
        print("printed by the test")
        raise AssertionError("the port was taken")
"""
_LISTS_IT = """
from tests import second_tries

second_tries.TESTS["test_once.py::test_that_fails_once"] = "Another program's server."
"""
_PLUGINS = ("--disable-plugin-autoload", "-p", "pytest_rerunfailures", "-p", "tests.second_tries")


def run(folder: Path, mark: str = "", conftest: str = "") -> "subprocess.CompletedProcess[str]":
    (folder / "test_once.py").write_text(_FAILS_ONCE.format(mark=mark, tried=str(folder / "tried")))
    (folder / "conftest.py").write_text(conftest)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  integration\n")
    command = [sys.executable, "-m", "pytest", "-ra", *_PLUGINS, "--rootdir", str(folder), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("mark", ["", "@pytest.mark.integration"])
def test_a_test_has_one_try(tmp_path: Path, mark: str) -> None:
    ended = run(tmp_path, mark)
    assert (ended.returncode, "1 failed" in ended.stdout) == (1, True)


def test_a_listed_test_has_a_second_try_and_the_first_is_printed_last(tmp_path: Path) -> None:
    ended = run(tmp_path, conftest=_LISTS_IT)
    assert (ended.returncode, "1 passed, 1 rerun" in ended.stdout) == (0, True)
    printed = ended.stdout.partition("1 passed, 1 rerun")[2]
    for expected in ("FAILED AT THE FIRST TRY", "Another program's server.", "the port was taken"):
        assert expected in printed
    assert "printed by the test" in printed


def test_a_second_try_of_a_test_that_is_not_listed_fails_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, mark="@pytest.mark.flaky(reruns=1)")
    assert (ended.returncode, "1 passed, 1 rerun" in ended.stdout) == (1, True)
    assert "1 failed at the first try, 1 of them not listed" in ended.stdout.splitlines()[-1]


@pytest.mark.integration
def test_tests_of_this_project_with_real_servers_have_one_try(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("flaky") is None


def test_the_list_is_short_and_each_entry_has_its_reason() -> None:
    assert len(second_tries.TESTS) <= 5
    assert all(second_tries.TESTS.values())
