"""Which test files a run does not import, because the option `-m` selects none of their tests."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unselected_files import pytest_ignore_collect

SLOW_FILE = """
import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
]

def test(): ...
"""
SLOW_TEST = """
import pytest

@pytest.mark.slow
def test(): ...

def test_of_each_run(): ...
"""
SLOW_TEXT = f"SOURCE = '''{SLOW_FILE}'''\n\ndef test_of_each_run(): ...\n"
MARKS_OF_NO_OR_SOME_TESTS = [
    "pytestmark = pytest.mark.integration  # not pytest.mark.slow",
    "pytestmark = [\n    pytest.mark.integration,\n    # pytest.mark.slow,\n]",
    "pytestmark = pytest.mark.parametrize('number', [1, pytest.param(2, marks=pytest.mark.slow)])",
    "pytestmark = [pytest.mark.parametrize('number', [1, pytest.param(2, marks=pytest.mark.slow)])]",
    "pytestmark = [pytest.mark.slow] if SLOW else []",
    "pytestmark = pytest.mark.slow\npytestmark = pytest.mark.integration",
]
NOT_SLOW = "not prometheus and not slow and not cluster"


def is_ignored(folder: Path, source: str, expression: str, name: str = "test_it.py") -> bool | None:
    (folder / name).write_text(source)
    config = cast(Any, SimpleNamespace(option=SimpleNamespace(markexpr=expression)))
    return pytest_ignore_collect(folder / name, config)


@pytest.mark.parametrize("expression", ["not slow", "not e2e", NOT_SLOW])
def test_a_file_is_not_imported_if_all_its_tests_have_an_excluded_mark(
    tmp_path: Path, expression: str
) -> None:
    assert is_ignored(tmp_path, SLOW_FILE, expression) is True


@pytest.mark.parametrize("expression", ["", "slow", "not cluster", "not slow or e2e", "slow and not cluster"])
def test_a_file_is_imported_if_its_tests_may_be_selected(tmp_path: Path, expression: str) -> None:
    assert is_ignored(tmp_path, SLOW_FILE, expression) is None


@pytest.mark.parametrize("source", [SLOW_TEST, SLOW_TEXT])
def test_a_file_is_imported_if_not_all_its_tests_have_the_mark(tmp_path: Path, source: str) -> None:
    assert is_ignored(tmp_path, source, "not slow") is None


@pytest.mark.parametrize("marks", MARKS_OF_NO_OR_SOME_TESTS)
def test_a_file_is_imported_if_the_mark_may_not_be_one_of_all_its_tests(tmp_path: Path, marks: str) -> None:
    source = f"import pytest\n\n{marks}\n\ndef test(number): ...\n"
    assert is_ignored(tmp_path, source, "not slow") is None


@pytest.mark.parametrize(
    "marks", ["pytest.mark.slow", "[pytest.mark.asyncio(loop_scope='module'), pytest.mark.slow]"]
)
def test_marks_with_arguments_do_not_matter_beside_an_excluded_one(tmp_path: Path, marks: str) -> None:
    source = f"import pytest\n\npytestmark = {marks}\n\ndef test(): ...\n"
    assert is_ignored(tmp_path, source, "not slow") is True


def test_files_of_other_kinds_are_left_to_other_plugins(tmp_path: Path) -> None:
    assert is_ignored(tmp_path, SLOW_FILE, "not slow", "notes.txt") is None
