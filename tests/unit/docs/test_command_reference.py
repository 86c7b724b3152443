"""The reference pages of the command line and the simulator list exactly the existing commands."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer._click import Command
from typer.core import TyperGroup
from typer.testing import CliRunner

from batchwright.simulator.call_parser import ENDPOINTS
from batchwright.simulator.faults import KINDS
from batchwright.starter.__main__ import COMMANDS as LISTED
from batchwright.starter.__main__ import app
from batchwright.starter.lazy_commands import LazyCommand
from batchwright.starter.output import ExitCode

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
COMMANDS = [
    *("submit", "status", "watch", "list", "cancel", "pause", "resume", "retry", "results", "validate"),
    *("folder", "dev", "demo", "worker", "migrate", "consistency", "doctor", "stats", "workers", "queues"),
    "codec-server",
]


def shown(*arguments: str) -> str:
    return CliRunner().invoke(app, [*arguments, "--help"]).stdout


def options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - {"--help"}


def section(page: str, heading: str) -> str:
    return re.split(r"^## ", page.split(f"\n## {heading}\n")[1], flags=re.MULTILINE)[0]


def test_every_command_is_in_the_table() -> None:
    listed = re.findall(r"^  ([a-z-]+) ", shown().split("Commands:")[1], flags=re.MULTILINE)
    table = (REFERENCE / "cli.md").read_text().split("## Exit codes")[0]
    assert {command for command in listed if f"`{command}`" not in table} == set()
    assert set(COMMANDS) - set(listed) == set()


@pytest.mark.parametrize("command", LISTED, ids=[command.name for command in LISTED])
def test_the_list_has_the_first_sentence_of_the_help_of_each_command(command: LazyCommand) -> None:
    real = command.command()
    assert (real.name or command.name, real.get_short_help_str(80)) == (command.name, command.help)


def with_subcommands(command: Command) -> Iterator[Command]:
    yield command
    if isinstance(command, TyperGroup):
        for each in command.commands.values():
            yield from with_subcommands(each)


@pytest.mark.parametrize("command", LISTED, ids=[command.name for command in LISTED])
def test_the_help_explains_each_option_and_argument(command: LazyCommand) -> None:
    explained = {
        f"{each.name} {param.name}": getattr(param, "help", None)
        for each in with_subcommands(command.command())
        for param in each.params
    }
    assert {name for name, text in explained.items() if not text} == set()


@pytest.mark.parametrize("module", ["httpx", "pydantic", "rich", "temporalio"])
def test_the_list_of_commands_imports_no_library_it_does_not_need(module: str) -> None:
    code = f"import sys; from batchwright.starter.__main__ import app; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_of_a_command_are_documented_and_no_others(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["batchwright"])  # which `worker` replaces
    monkeypatch.delitem(sys.modules, f"{command}.__main__", raising=False)  # of another test
    heading = {"queues": "workers"}.get(command, command)
    assert options(section((REFERENCE / "cli.md").read_text(), heading)) == options(shown(command))


def test_the_exit_codes_are_documented() -> None:
    table = section((REFERENCE / "cli.md").read_text(), "Exit codes")
    assert [int(code) for code in re.findall(r"^\| (\d) \|", table, flags=re.MULTILINE)] == list(ExitCode)


def test_the_simulator_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["batchwright"])  # which `simulator` replaces
    page = (REFERENCE / "simulator.md").read_text()
    assert options(section(page, "Options")) == options(shown("simulator"))
    assert {kind for kind in KINDS if f"| `{kind}` |" not in page} == set()
    assert {endpoint for endpoint in ENDPOINTS if f"`{endpoint}`" not in page} == set()


def test_the_list_of_commands_is_80_columns_wide_and_truncates_no_summary() -> None:
    help_ = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    assert max(len(line) for line in help_.splitlines()) <= 80
    assert re.findall(r"^  \S.*\.\.\.$", help_.partition("Commands:")[2], flags=re.MULTILINE) == []


@pytest.mark.parametrize("command", LISTED, ids=[command.name for command in LISTED])
def test_help_is_80_columns_wide_and_truncates_no_summary(
    command: LazyCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["batchwright"])  # which `worker` replaces
    monkeypatch.delitem(sys.modules, f"batchwright.{command.name}.__main__", raising=False)  # of another test
    help_ = CliRunner().invoke(app, [command.name or "", "--help"], env={"COLUMNS": "80"}).output
    assert max(len(line) for line in help_.splitlines()) <= 80
    assert re.findall(r"^  \S.*\.\.\.$", help_.partition("Commands:")[2], flags=re.MULTILINE) == []
