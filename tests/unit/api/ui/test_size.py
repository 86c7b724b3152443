"""The pages stay small: at most 1,500 lines of templates and code."""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import batchwright.api.ui as ui

FOLDER = Path(ui.__file__).parent
MAX_LINES = 1500
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}


def test_the_pages_have_at_most_1500_lines_of_templates_and_code() -> None:
    templates = [path.read_text().splitlines() for path in FOLDER.glob("templates/*")]
    in_templates = sum(bool(line.strip()) for lines in templates for line in lines)
    in_code = sum(len(set(code_lines(path.read_text()))) for path in FOLDER.glob("**/*.py"))
    assert in_templates > 300
    assert in_code > 700
    assert in_templates + in_code <= MAX_LINES


def code_lines(source: str) -> Iterator[int]:
    """Yield the numbers of lines that contain code, and not only a comment or a docstring."""
    docstrings = {
        number
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            yield from set(range(token.start[0], token.end[0] + 1)) - docstrings
