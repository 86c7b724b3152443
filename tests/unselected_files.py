"""Keeps pytest from importing test files in which the option `-m` selects no test.

Otherwise each process of pytest-xdist would import all of them. Only expressions such as `not slow and not
cluster` are understood. With other expressions, all files are imported, and pytest selects the tests as
usual.
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
    """Return the names of the marks that a module gives all its tests with `pytestmark`.

    Only marks without arguments count. Another mark may have marks of single parameters as arguments.
    """
    marks = set[str]()
    for statement in ast.parse(source).body:
        match statement:
            case ast.Assign([ast.Name("pytestmark")], value):
                elements = value.elts if isinstance(value, ast.List) else [value]
                marks = {name for element in elements if (name := _plain_mark(element))}
            case _:
                pass
    return marks


def _plain_mark(expression: ast.expr) -> str | None:
    match expression:
        case ast.Attribute(ast.Attribute(ast.Name("pytest"), "mark"), name):
            return name
        case _:
            return None
