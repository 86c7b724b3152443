"""Each command, setting and metric that a page names exists."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from batchwright.settings import Settings
from batchwright.starter.__main__ import COMMANDS, app
from batchwright.starter.lazy_commands import LazyCommand

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
]
_SHELL = re.compile(r"^```sh[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# From a command's name, where one may begin, to where the shell has its next one, or a redirection.
_COMMAND = re.compile(
    r"""(?:^|\$\(|[|&]\s|--\s)(?:\w+=(?:'[^']*'|\S+)\s)*  # behind settings of its own
    (?:\.venv/bin/)?batchwright\s
    ((?:'[^']*'|"[^"]*"|[^|;&<>()'"\#\n])*)""",
    re.MULTILINE | re.VERBOSE,
)
# These take the options of a process, which reads them itself.
_PROCESSES = {"worker", "api", "simulator"}


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in _SHELL.findall(page.read_text()):
            for found in _COMMAND.findall(block.replace("\\\n", " ")):
                yield str(page.relative_to(ROOT)), found.strip()


@pytest.mark.parametrize(("page", "command"), sorted(set(commands())))
def test_every_command_in_a_page_is_accepted_by_the_command_line(page: str, command: str) -> None:
    _parse(_group(), [re.sub(r"\$\w+|\.\.\.", "0", word) for word in shlex.split(command)])


@cache
def _group() -> TyperGroup:
    group = typer.main.get_group(app)
    for listed in COMMANDS:
        group.add_command(listed)
    return group


def _parse(group: TyperGroup, words: list[str]) -> None:
    """Parse the words as a command line. Raise typer's error if they are not valid."""
    with group.make_context("batchwright", list(words)) as context:
        if not words:  # such as `models`, which lists them
            return
        name, command, rest = group.resolve_command(context, words)
        assert command is not None
        if isinstance(command, LazyCommand):
            command = command.command()
        if isinstance(command, TyperGroup):
            _parse(command, rest)
        elif name not in _PROCESSES:
            command.make_context(name, rest, parent=context)


def test_the_commands_of_the_pages_are_found() -> None:
    assert len(set(commands())) > 50


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_setting_that_a_page_names_exists(page: Path) -> None:
    settings = {f"BATCHWRIGHT_{name.upper()}" for name in Settings.model_fields}
    of_compose = set(re.findall(r"\$\{(BATCHWRIGHT_[A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))
    assert (
        set(re.findall(r"\bBATCHWRIGHT_[A-Z0-9_]*[A-Z0-9]", page.read_text())) - settings - of_compose
        == set()
    )


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent.name != "decisions"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_metric_that_a_page_names_exists(page: Path) -> None:
    families = _metrics((ROOT / "docs" / "reference" / "metrics.md").read_text())
    named = _metrics(page.read_text())
    assert {
        name for name in named if not families & {name, re.sub("_(total|bucket|sum|count)$", "", name)}
    } == set()


def _metrics(text: str) -> set[str]:
    return set(re.findall(r"\bbatchwright_[a-z_]+[a-z]", text))


def test_make_lists_its_targets_within_80_columns() -> None:
    output = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "  make test-fast " in output
    assert max(map(len, output.splitlines())) <= 80
