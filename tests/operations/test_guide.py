"""Every command on the operator's pages is run by a test."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchwright.starter.__main__ import app
from tests.operations.guide import DOCS, PAGES, blocks

HERE = Path(__file__).parent
# What a shell has, and what the embedded servers' wheels bring.
_RUN = {"batchwright", "pg_dump", "pg_restore", "temporal", "mkdir", "tar"}
_CLUSTER = {"kubectl", "helm"}
_INLINE = re.compile(r"`(batchwright [^`]+)`")


def test_every_block_that_can_run_anywhere_is_run_by_a_test() -> None:
    tests = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    run = set(re.findall(r'run\(\s*block\("([^"]+)"\)', tests))
    assert run == {block.heading for block in blocks() if not block.needs_a_cluster}


def test_a_heading_has_one_block_that_can_run_anywhere() -> None:
    headings = [block.heading for block in blocks() if not block.needs_a_cluster]
    assert sorted(headings) == sorted(set(headings))


def test_only_blocks_that_need_a_cluster_are_not_run() -> None:
    assert _programs(needs_a_cluster=False) <= _RUN
    assert _programs(needs_a_cluster=True) <= _CLUSTER


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_sentence_exists(page: str) -> None:
    for command in _INLINE.findall((DOCS / page).read_text()):
        words = [word for word in command.split()[1:] if not word.isupper()]
        options = {word for word in words if word.startswith("--")}
        shown = CliRunner().invoke(app, [*(word for word in words if word not in options), "--help"])
        assert shown.exit_code == 0, command
        assert {option for option in options if option not in shown.stdout} == set(), command


def _programs(*, needs_a_cluster: bool) -> set[str]:
    commands = (each.commands for each in blocks() if each.needs_a_cluster is needs_a_cluster)
    return {shlex.split(command)[0] for some in commands for command in some}
