"""Python blocks of pages for users define all names that they use."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.operations.how_tos import python_blocks

ROOT = Path(__file__).parents[3]
_FOR_USERS = [
    ROOT / "README.md",
    *(ROOT / "docs/tutorial").glob("*.md"),
    *(ROOT / "docs/how-to").glob("*.md"),
]
PAGES = [page for page in _FOR_USERS if python_blocks(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_of_a_page_in_order_define_every_name_that_they_use(page: Path) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", "-"]
    found = subprocess.run(command, input="\n".join(python_blocks(page)), capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
