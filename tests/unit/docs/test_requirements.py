"""All tests and decisions that the page of requirements names exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/reference/requirements.md"
_ROW = re.compile(r"^\| (S[0-4]-R?\d+[a-z]?) \|(.+)\|(.+)\|(.+)\|$", re.MULTILINE)
TESTS = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_FOLDERS = "activities|api|batchwright|bench|deploy|docs|simulator|starter|tests|worker|workflows"
_PATH = re.compile(rf"`((?:{_FOLDERS})/[\w./-]+)")
ROWS = {number: proof.strip() for number, _, _, proof in _ROW.findall(PAGE.read_text())}


@cache
def functions_of(path: str) -> frozenset[str]:
    statements = ast.parse((ROOT / path).read_text()).body
    return frozenset(
        each.name for each in statements if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_test_that_the_page_names_exists() -> None:
    named = set(TESTS.findall(PAGE.read_text()))
    missing = [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not (ROOT / path).exists() or name not in functions_of(path)
    ]
    assert missing == []


def test_every_file_that_the_page_names_exists() -> None:
    named = {path.rstrip("./") for path in _PATH.findall(PAGE.read_text())}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("number", list(ROWS))
def test_every_requirement_is_proved_ruled_out_or_said_to_be_missing(number: str) -> None:
    proof = ROWS[number]
    is_proved = TESTS.search(proof) is not None or "`bench/" in proof or "](../decisions/" in proof
    assert is_proved or proof == "not met" or proof.startswith("partly: ")


@pytest.mark.parametrize("source", ["S0", "S1", "S2", "S3", "S4"])
def test_no_number_is_left_out_or_comes_twice(source: str) -> None:
    numbers = [number for number, *_ in _ROW.findall(PAGE.read_text()) if number.startswith(f"{source}-")]
    counted = {int(found[1]) for number in numbers if (found := re.search(r"-(\d+)", number))}
    assert len(numbers) == len(set(numbers))
    assert counted == set(range(1, max(counted) + 1))
