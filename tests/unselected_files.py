"""Does not import test files of which the option `-m` selects no test.

Each process of pytest-xdist would import all of them. Only expressions such as `not slow and not cluster` are
understood. With others, all files are imported, and pytest selects the tests as usual.
"""

import ast
import re
from pathlib import Path

import pytest

_EXPRESSION = re.compile(r"not \w+( and not \w+)*")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Return True to ignore the file, or None to let the other plugins decide."""
    expression: str = config.option.markexpr
    if collection_path.suffix != ".py" or not _EXPRESSION.fullmatch(expression):
        return None
    excluded = re.findall(r"not (\w+)", expression)
    source = collection_path.read_text()
    if not any(f"pytest.mark.{mark}" in source for mark in excluded):
        return None  # it need not be parsed, which takes longer
    return True if marks_of_all_tests(source).intersection(excluded) else None


def marks_of_all_tests(source: str) -> set[str]:
    """Return the names of the marks that a module gives all its tests with `pytestmark`."""
    lines, marks = source.splitlines(), set[str]()
    for statement in ast.parse(source).body:
        text = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
        if text.startswith("pytestmark = "):
            marks.update(re.findall(r"pytest\.mark\.(\w+)", text))
    return marks
